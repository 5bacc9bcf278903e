"""Where trainer and rollout run, for real: pools of their own, and one pool whose memory changes hands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import RECIPE, Cli, metrics_of, processes_of, record_of

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(2400)]

PROBS_DIFF = "training/rollout_probs_diff_max"
STEPS = 3
SHORT = (
    "--no-gate",
    "--set", f"trainer.total_training_steps={STEPS}",
    "--set", "trainer.test_freq=-1",
    "--set", "trainer.val_before_train=false",
)  # fmt: skip
# What placement may change: how long things take, and figures that only one of verl's trainers logs.
NOT_COMPARED = ("timing_", "perf/", "actor/perf/", "weight_sync/", "training/off_policy/")


def figures(run_dir: Path, name: str) -> list[float]:
    return [row["data"][name] for row in metrics_of(run_dir) if name in row["data"]]


def comparable(run_dir: Path) -> list[dict[str, float]]:
    return [
        {name: value for name, value in row["data"].items() if not name.startswith(NOT_COMPARED)}
        for row in metrics_of(run_dir)
    ]


def written(run_dir: Path, pattern: str) -> list[dict[str, Any]]:
    """What workers left beside their proofs."""
    return [json.loads(path.read_text()) for path in sorted((run_dir / "logs" / "proof").glob(pattern))]


def check_pools(run_dir: Path) -> None:
    """Trainer and rollout hold devices of their own, as their workers proved."""
    device = record_of(run_dir)["device"]
    assert (device["count"], device["pools"], device["proven"]) == (3, {"trainer": 2, "rollout": 1}, True)
    trainers = [worker for worker in device["workers"] if worker["role"].startswith("fsdp-")]
    rollouts = [worker for worker in device["workers"] if worker["role"] == "rollout-worker"]
    held = {worker["device_index"] for worker in trainers}
    assert len(held) == 2
    assert {worker["device_index"] for worker in rollouts} == {0, 1, 2} - held
    assert {worker["world_size"] for worker in trainers} == {2}
    assert {worker["world_size"] for worker in rollouts} == {1}
    assert "rollout 1" in (run_dir / "report.md").read_text()


def check_weights(run_dir: Path) -> None:
    """Weights went from a trainer's device to the rollout's over mccl: once before the first step, once after each."""
    transfers = {entry["role"]: entry for entry in written(run_dir, "weights-*.json")}
    assert set(transfers) == {"weights-sender", "weights-receiver"}
    sender, receiver = transfers["weights-sender"], transfers["weights-receiver"]
    assert sender["device"] != receiver["device"]
    assert sender["transport"] == receiver["transport"] == "mccl"
    digests = [sync["digest"] for sync in sender["syncs"]]
    # New weights each time; but the first update's rate is 0 (warm-up), so it sends what was there before.
    assert len(digests) == STEPS + 1
    assert len(set(digests)) == STEPS
    assert [sync["digest"] for sync in receiver["syncs"]] == digests
    assert [sync["step"] for sync in sender["syncs"]] == list(range(STEPS + 1))
    assert figures(run_dir, "weight_sync/tensors") == [sender["syncs"][0]["sent"]["tensors"]] * STEPS


def check_released(run_dir: Path) -> None:
    """Each server gave weights and cache back, once before the first weights and once a step, and has them again."""
    servers = written(run_dir, "released-*.json")
    assert len(servers) == 2
    for server in servers:
        assert server["releases"] == server["resumes"] == 2 * (STEPS + 1)
        assert server["still_released"] == []
        assert server["bytes"]["weights"] > 500_000
        assert server["bytes"]["kv_cache"] > 1_000_000


def test_both_placements_train_alike_and_each_does_what_it_says(cli: Cli) -> None:
    assert cli.run(f"{RECIPE}@split", *SHORT) == 0
    assert cli.run(f"{RECIPE}@sleep", *SHORT) == 0
    split, sleep = cli.run_dirs()
    check_pools(split)
    check_weights(split)
    check_released(sleep)
    assert figures(split, "training/off_policy/trajectory_staleness/max") == [0] * STEPS
    for run_dir in (split, sleep):
        # From step 2 on only if the weights of the step before have arrived. What a server gave back is NaN until then.
        differences = figures(run_dir, PROBS_DIFF)
        assert len(differences) == STEPS
        assert max(differences) < 1e-5
        assert processes_of(run_dir) == []
    assert comparable(split) == comparable(sleep)


def test_weights_that_do_not_arrive_fail_a_split_run(cli: Cli) -> None:
    assert cli.run(f"{RECIPE}@split", *SHORT, VERL_MUSA_TEST_DROP_WEIGHT_SYNC="1") == 1
    (run_dir,) = cli.run_dirs()
    assert max(figures(run_dir, PROBS_DIFF)) > 1e-4
    assert "probab" in record_of(run_dir)["exit_reason"]
