"""The support matrix as a table: complete, made from results alone, and current."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.conftest import load_matrix
from verl_musa.recipe import Site, load_recipe, resolve

MATRIX = load_matrix()
RESULT = {
    "status": "runs",
    "exit_code": 0,
    "reason": "",
    "steps": 3,
    "log_ppl_diff_max": 1.5e-7,
    "probs_diff_max": 2.5e-7,
    "step_s": 4.31,
    "wall_s": 150,
    "proven": True,
    "date": "2026-01-02",
    "versions": {"verl": "0.9.1"},
}


def test_every_combination_is_a_cell_once() -> None:
    cells = MATRIX.cells()
    places = [(c.trainer, c.rollout, c.model, c.algorithm, c.placement) for c in cells]
    assert places == list(itertools.product(*MATRIX.AXES.values()))
    assert len({cell.id for cell in cells}) == 32


def test_the_base_recipes_need_no_variant() -> None:
    named = {cell.id: cell.recipe for cell in MATRIX.cells()}
    assert named["fsdp2-sglang-dense-grpo-colocated"] == "qwen3-tiny-dense"
    assert named["megatron-sglang-moe-grpo-colocated"] == "qwen3-tiny-moe"
    assert named["fsdp2-sglang-dense-ppo-colocated"] == "qwen3-tiny-ppo"
    assert named["megatron-vllm-dense-grpo-split"] == "qwen3-tiny-dense@megatron-tp2+vllm+split"


COMBINED = [cell.recipe for cell in MATRIX.cells() if not cell.reason and "+" in cell.recipe]


@pytest.mark.parametrize("named", COMBINED)
def test_variants_laid_over_each_other_resolve(named: str) -> None:
    """One variant at a time is what tests/recipes/test_golden.py looks at."""
    recipe = load_recipe(str(MATRIX.ROOT / "recipes" / named))
    resolved = resolve(recipe, run_dir=Path("/runs/r1"), site=Site())
    config, variables = resolved.config, resolved.runtime_env["env_vars"]
    actor, critic = config["actor_rollout_ref"]["actor"], config["critic"]
    assert actor["strategy"] in {"fsdp2", "megatron"}
    if config["algorithm"]["adv_estimator"] == "gae":
        assert critic["strategy"] == actor["strategy"]
    assert config["actor_rollout_ref"]["rollout"]["name"] == (
        "vllm" if "vllm" in recipe.variants else "sglang"
    )
    assert recipe.placement == ("split" if "split" in recipe.variants else "colocated")
    assert variables["MUSA_SIM_DEVICES"] == str(recipe.cluster.devices_per_node)


def test_a_cell_without_its_variant_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(MATRIX, "ROOT", tmp_path)
    cell = next(cell for cell in MATRIX.cells() if cell.recipe == "qwen3-tiny-dense@vllm+split")
    assert cell.reason == "not done: qwen3-tiny-dense has no variant vllm and split"


def test_rows_say_what_happened() -> None:
    cell = next(cell for cell in MATRIX.cells() if cell.recipe == "qwen3-tiny-dense")
    text = MATRIX.render({cell.id: RESULT})
    assert (
        "| FSDP2 | SGLang | dense | GRPO | colocated | runs | 1.5e-07 | 2.5e-07 | 4.3 | 150 | `qwen3-tiny-dense` |"
        in text
    )
    assert "1 of 32 cells run; measured 2026-01-02." in text
    failed = {**RESULT, "status": "fails", "reason": "worker 3 died"}
    assert "**fails** | | | | 150 | `qwen3-tiny-dense`: worker 3 died |" in MATRIX.render({cell.id: failed})
    assert "not run yet: `qwen3-tiny-dense` |" in MATRIX.render({})


def run_directory(folder: Path, **record: Any) -> Path:
    folder.mkdir()
    whole = {
        "exit_reason": None,
        "created_at": "2026-01-02T03:04:05+00:00",
        "device": {"proven": True},
        "versions": {"verl": "0.9.1", "ray": "2.58.0"},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        **record,
    }
    (folder / "run.json").write_text(json.dumps(whole))
    rows = [
        {"step": 0, "data": {"val-core/acc": 0.1}},
        {
            "step": 1,
            "data": {
                "training/rollout_probs_diff_max": 1e-7,
                "rollout_corr/log_ppl_abs_diff": 2e-8,
                "timing_s/step": 9.0,
            },
        },
        {
            "step": 2,
            "data": {
                "training/rollout_probs_diff_max": 3e-7,
                "rollout_corr/log_ppl_abs_diff": 1e-8,
                "timing_s/step": 4.0,
            },
        },
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_result_is_read_from_the_run_directory(tmp_path: Path) -> None:
    result = MATRIX.result_of(run_directory(tmp_path / "run"), 0, 99.6)
    assert (result["status"], result["steps"], result["wall_s"]) == ("runs", 2, 100)
    assert (result["log_ppl_diff_max"], result["probs_diff_max"], result["step_s"]) == (2e-8, 3e-7, 4.0)
    assert result["versions"] == {"verl": "0.9.1"}


def test_a_failure_keeps_the_first_line_of_its_reason(tmp_path: Path) -> None:
    result = MATRIX.result_of(run_directory(tmp_path / "run", exit_reason="it broke\ndetails"), 1, 5)
    assert (result["status"], result["reason"]) == ("fails", "it broke")


ENDED = {
    "recipe": {"name": "qwen3-tiny-dense", "variants": ["split"]},
    "sets": list(MATRIX.SHORT),
    "status": "succeeded",
    "ended_at": "2026-01-02T03:06:05+00:00",
}


def test_a_run_that_ended_counts_for_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MATRIX, "STEPS", 2)
    cell, result = MATRIX.run_result(run_directory(tmp_path / "run", **ENDED))
    assert cell.id == "fsdp2-sglang-dense-grpo-split"
    assert (result["status"], result["wall_s"], result["commit"]) == ("runs", 120, "0123456789ab")
    cell, result = MATRIX.run_result(
        run_directory(tmp_path / "other", **{**ENDED, "status": "failed", "exit_reason": "no"})
    )
    assert (result["status"], result["reason"]) == ("fails", "no")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": {"name": "mine", "variants": []}}, "mine is no cell"),
        ({"sets": ["actor_rollout_ref.rollout.n=2"]}, "changed actor_rollout_ref.rollout.n"),
        ({"status": "running"}, "is running"),
        ({"device": {"proven": False}}, "did not prove"),
        ({}, "2 steps, expected 3"),
    ],
)
def test_other_runs_count_for_none(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MATRIX.run_result(run_directory(tmp_path / "run", **{**ENDED, **changes}))


def test_engines_that_disagree_do_not_count() -> None:
    assert MATRIX.shortfall(RESULT) == ""
    assert "expected at most 1e-05" in MATRIX.shortfall({**RESULT, "log_ppl_diff_max": 2e-5})
    assert "log_ppl_abs_diff None" in MATRIX.shortfall({**RESULT, "log_ppl_diff_max": None})


def test_results_are_kept_beside_each_other(tmp_path: Path) -> None:
    first, second, *_ = MATRIX.cells()
    file = tmp_path / "matrix.json"
    file.write_text(json.dumps({"a-cell-of-long-ago": RESULT}))
    MATRIX.keep_result(first, RESULT, file)
    MATRIX.keep_result(second, {**RESULT, "wall_s": 1}, file)
    assert set(MATRIX.read_results(file)) == {first.id, second.id}
    assert MATRIX.read_results(file)[second.id]["wall_s"] == 1


def test_the_page_is_what_the_results_give() -> None:
    assert MATRIX.TABLE.read_text(encoding="utf-8") == MATRIX.render(MATRIX.read_results())
