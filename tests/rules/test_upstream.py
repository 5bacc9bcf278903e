"""What verl itself says, asked for real in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa.checks import Status
from verl_musa.rules import upstream
from verl_musa.rules.upstream import ask_verl

from .conftest import DENSE, MOE, Plant

ACTOR = "actor_rollout_ref.actor"


@pytest.mark.integration
def test_what_verl_refuses_is_a_failure_at_its_line(plant: Plant, tmp_path: Path) -> None:
    mistakes = {
        f"+{ACTOR}.megatron.tensor_parallel: 4": "tensor_parallel",
        f"{ACTOR}.loss_agg_mode: mean-of-means": "Invalid loss_agg_mode: mean-of-means",
        "actor_rollout_ref.rollout.mode: sync": "sync",
        "+actor_rollout_ref.model.flash: true": "HFModelConfig has no field 'flash'",
    }
    planted = []
    for index, line in enumerate(mistakes):
        made = plant(DENSE, "config.yaml", "", line)
        planted.append((made.resolve(), made.where))
        made.folder.rename(tmp_path / f"{DENSE}-{index}")
    results = ask_verl([resolved for resolved, _ in planted])
    for (_, where), result, says in zip(planted, results, mistakes.values(), strict=True):
        assert result.status is Status.FAIL, result
        assert says in result.evidence
        assert result.where == where
        assert result.fix


def test_no_recipe_is_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "verl_musa.rules.upstream.subprocess.run", lambda *_, **__: pytest.fail("a process was started")
    )
    assert ask_verl([]) == []


def test_a_verl_that_does_not_answer_is_unknown(plant: Plant) -> None:
    (result,) = ask_verl([plant(MOE).resolve()], limit_s=0.05)
    assert result.status is Status.UNKNOWN
    assert "did not answer within 0.05 s" in result.evidence
    assert result.fix


def test_a_process_that_breaks_is_unknown(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job.py"
    job.write_text("raise SystemExit('no verl here')", encoding="utf-8")
    monkeypatch.setattr(upstream, "_JOB", job)
    (result,) = ask_verl([plant(MOE).resolve()])
    assert result.status is Status.UNKNOWN
    assert "ended with 1: no verl here" in result.evidence
