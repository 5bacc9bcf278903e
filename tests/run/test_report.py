from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from verl_musa.errors import JobFailedError
from verl_musa.observe.metrics import Rows
from verl_musa.recipe import Recipe, load_recipe
from verl_musa.recipe.schema import Accept
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import ClusterFacts, HostFacts, RunRecord
from verl_musa.run.report import check_accepted, print_summary, summarize, write_report

RECIPE = load_recipe(str(Path(__file__).parents[1] / "fixtures" / "fake_recipe"))


def rows(scores: list[float]) -> Rows:
    found: Rows = {0: {"val-core/a/reward/mean@1": 0.1}}
    for step, score in enumerate(scores, start=1):
        found[step] = {
            "critic/score/mean": score,
            "training/rollout_probs_diff_max": step * 1e-8,
            "rollout_corr/log_ppl_abs_diff": step * 3e-9,
            "perf/time_per_step": 100.0 if step == 1 else 2.0,
            "perf/total_num_tokens": 200,
            "actor/perf/max_memory_allocated_gb": step / 10,
        }
    found[len(scores)]["val-core/a/reward/mean@1"] = 0.9
    return found


def accepting(**bounds: float) -> Recipe:
    return RECIPE.model_copy(update={"accept": Accept(**bounds)})


def test_the_figures_of_a_run(record: RunRecord) -> None:
    record.device.mccl_calls = {"allreduce": 3}
    summary = summarize(rows([0.1] * 5 + [0.5] * 5), record)
    assert summary == {
        "steps": 10,
        "last_step": 10,
        "score_first5": pytest.approx(0.1),
        "score_last5": pytest.approx(0.5),
        "validation_first": {"val-core/a/reward/mean@1": 0.1},
        "validation_last": {"val-core/a/reward/mean@1": 0.9},
        "rollout_probs_diff_max": pytest.approx(1e-7),
        "log_ppl_abs_diff_max": pytest.approx(3e-8),
        "seconds_per_step": 2.0,
        "tokens_per_second": 100.0,
        "device_memory_gib_max": 1.0,
        "mccl_calls": 3,
    }


def test_nothing_logged_gives_an_empty_summary(record: RunRecord) -> None:
    summary = summarize({}, record)
    assert summary["steps"] == summary["last_step"] == 0
    assert summary["score_last5"] is None


@pytest.mark.parametrize(
    ("bounds", "scores", "message"),
    [
        (
            {"score_last5_min": 0.5},
            [0.1] * 5 + [0.4] * 5,
            "mean score of the last five steps is not accepted: 0.4",
        ),
        (
            {"score_gain_min": 2.0},
            [0.3] * 5 + [0.5] * 5,
            "over that of the first five is not accepted: 1.667",
        ),
        (
            {"log_ppl_abs_diff_max": 1e-9},
            [0.5] * 3,
            r"\(rollout_corr/log_ppl_abs_diff\) is not accepted: 9e-09",
        ),
        (
            {"rollout_probs_diff_max": 1e-9},
            [0.5] * 6,
            r"\(training/rollout_probs_diff_max\) is not accepted: 6e-08",
        ),
    ],
)
def test_a_missed_bound_fails(
    record: RunRecord, bounds: dict[str, float], scores: list[float], message: str
) -> None:
    record.device.mccl_calls = {"allreduce": 3}
    with pytest.raises(JobFailedError, match=message):
        check_accepted(accepting(**bounds), record, summarize(rows(scores), record))


def test_reached_bounds_pass_and_shortened_runs_are_not_held_to_the_score(record: RunRecord) -> None:
    record.device.mccl_calls = {"allreduce": 3}
    recipe = accepting(score_last5_min=0.5, score_gain_min=2.0, rollout_probs_diff_max=1e-5)
    check_accepted(recipe, record, summarize(rows([0.0] * 5 + [0.5] * 5), record))
    record.sets = ["trainer.total_training_steps=4"]
    check_accepted(recipe, record, summarize(rows([0.1] * 4), record))


def test_a_figure_that_was_never_logged_is_not_accepted(record: RunRecord) -> None:
    record.device.mccl_calls = {"allreduce": 3}
    logged: Rows = {1: {"critic/score/mean": 1.0}}
    with pytest.raises(JobFailedError, match="never logged"):
        check_accepted(accepting(rollout_probs_diff_max=1e-5), record, summarize(logged, record))


def test_no_step_and_no_collective_fail(record: RunRecord) -> None:
    with pytest.raises(JobFailedError, match="no training step"):
        check_accepted(RECIPE, record, summarize({}, record))
    with pytest.raises(JobFailedError, match="no collective went through"):
        check_accepted(RECIPE, record, summarize(rows([0.5]), record))
    record.device.count = 1
    check_accepted(RECIPE, record, summarize(rows([0.5]), record))


def test_the_report_and_the_table_say_how_it_went(run: RunDirectory, record: RunRecord) -> None:
    record.device.mccl_calls = {"allreduce": 3}
    record.set_status("failed", "worker X died")
    record.summary = summarize(rows([0.5] * 3), record)
    write_report(run, record)
    text = run.report.read_text()
    for part in (
        "| status | failed |",
        "2 x musa (simulated), not proven",
        "worker X died",
        "| allreduce | 3 |",
        "verl | 0.9.1",
    ):
        assert part in text
    stream = io.StringIO()
    print_summary(run, record, Console(file=stream, width=100))
    assert "probability difference, max" in stream.getvalue()
    assert f"run directory: {run.path}" in stream.getvalue()


def test_hosts_lost_hosts_and_rejected_checkpoints_are_in_the_report(
    run: RunDirectory, record: RunRecord
) -> None:
    record.cluster = ClusterFacts(nodes=2, devices_per_node=1, hosts=["a", "b"], head="a", site="", shared="")
    record.attempt.hosts = [
        HostFacts(name="a", ssh="a", address="198.51.100.1", interface="eth1", hostname="a", head=True),
        HostFacts(name="b", ssh="b", address="198.51.100.2", interface="eth1", hostname="b"),
    ]
    record.attempt.lost = {"b": "host b is lost: Ray calls it DEAD (a|b)"}
    record.attempt.rejected = ["checkpoint of step 4 ignored: data.pt is missing"]
    write_report(run, record)
    text = run.report.read_text()
    assert "| hosts | a, b; lost: b |" in text
    assert (
        "| 1 | a (198.51.100.1, head), b (198.51.100.2) | host b is lost: Ray calls it DEAD (a\\|b) |" in text
    )
    assert "- attempt 1: checkpoint of step 4 ignored: data.pt is missing" in text


def test_an_early_end_gives_a_report_too(run: RunDirectory, record: RunRecord) -> None:
    values: dict[str, Any] = summarize({}, record)
    record.summary = values
    write_report(run, record)
    assert "| score, last five steps | - |" in run.report.read_text()


def test_pools_are_shown_with_the_devices_that_their_workers_hold(
    run: RunDirectory, record: RunRecord
) -> None:
    record.device.pools = {"trainer": 2, "rollout": 1}
    record.device.workers = [
        {"role": "fsdp-language_model", "node": "n1", "accelerators": [device]} for device in ("0", "1")
    ]
    write_report(run, record)
    assert "| pools | trainer 2 (n1:0, n1:1); rollout 1 |" in run.report.read_text(encoding="utf-8")
