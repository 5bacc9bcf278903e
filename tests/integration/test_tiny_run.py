"""The main job, for real: verl GRPO, FSDP2, SGLang and Ray on the simulated `musa` device."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import RECIPE, Cli, metrics_of, processes_of, record_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

PROBS_DIFF = "training/rollout_probs_diff_max"
SCORE = "critic/score/mean"
FOUR_STEPS = ("--set", "trainer.total_training_steps=4", "--set", "trainer.save_freq=2")
# Wall-clock figures and what is computed from them, and memory, differ between any two runs.
NOT_COMPARED = ("timing_", "perf/", "actor/perf/")


def values(run_dir: Path, name: str) -> list[float]:
    return [row["data"][name] for row in metrics_of(run_dir) if name in row["data"]]


def comparable(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row["data"].items() if not name.startswith(NOT_COMPARED)}


def test_the_recipe_learns_on_the_simulated_device(cli: Cli) -> None:
    assert cli.run(RECIPE) == 0
    (run_dir,) = cli.run_dirs()
    record = record_of(run_dir)
    scores = values(run_dir, SCORE)
    first, last = statistics.mean(scores[:5]), statistics.mean(scores[-5:])
    assert last >= 0.5
    assert last >= 2 * first
    diffs = values(run_dir, PROBS_DIFF)
    assert len(diffs) == len(scores)
    assert max(diffs) < 1e-5
    assert record["status"] == "succeeded"
    assert record["device"]["type"] == "musa"
    assert record["device"]["simulated"] is True
    assert sum(record["device"]["mccl_calls"].values()) > 0
    assert any(name.startswith("val-") for row in metrics_of(run_dir) for name in row["data"])
    assert processes_of(run_dir) == []
    report = (run_dir / "report.md").read_text()
    assert "simulated" in report
    for name in ("config.yaml", "runtime_env.yaml", "launch.sh"):
        assert (run_dir / name).stat().st_size > 0


@pytest.mark.long
def test_a_killed_run_resumes_where_an_undisturbed_one_goes_on(cli: Cli) -> None:
    assert cli.run(RECIPE, *FOUR_STEPS) == 0
    (undisturbed,) = cli.run_dirs()
    killed = cli.killed_after_step(2, RECIPE, *FOUR_STEPS)

    assert cli.run(RECIPE, "--resume", killed.name) == 0
    resumed, whole = metrics_of(killed), metrics_of(undisturbed)
    assert [row["step"] for row in resumed] == [row["step"] for row in whole]
    assert "step 3" in cli.output()
    for ours, theirs in zip(resumed[2:], whole[2:], strict=True):
        assert comparable(ours) == comparable(theirs)


@pytest.mark.long
def test_a_stale_rollout_is_caught_by_the_probability_difference(cli: Cli) -> None:
    # The gate would find it before step 1; this is about what finds it afterwards.
    arguments = (RECIPE, "--no-gate", "--set", "trainer.total_training_steps=4")
    code = cli.run(*arguments, VERL_MUSA_TEST_DROP_WEIGHT_SYNC="1")
    assert code == 1
    (run_dir,) = cli.run_dirs()
    assert max(values(run_dir, PROBS_DIFF)) > 1e-3
    assert record_of(run_dir)["status"] == "failed"
    assert "probab" in record_of(run_dir)["exit_reason"]


@pytest.mark.long
def test_a_killed_worker_is_named_with_its_last_words(cli: Cli) -> None:
    process = cli.start(RECIPE)
    run_dir = cli.wait_for_step(process, 1)
    (victim, *_) = [worker for worker in processes_of(run_dir) if _is_trainer_rank(worker)]
    victim.kill()
    killed_at = time.monotonic()
    code = process.wait(timeout=120)
    assert time.monotonic() - killed_at < 60
    assert code == 1
    reason = record_of(run_dir)["exit_reason"]
    assert str(victim.pid) in reason
    assert str(victim.pid) in cli.output()
    assert processes_of(run_dir) == []


def _is_trainer_rank(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("ray::") and "WorkerDict" in process.name()
    except psutil.NoSuchProcess:
        return False
