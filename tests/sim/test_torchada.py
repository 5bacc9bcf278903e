"""torchada, which turns torch.cuda into torch.musa for CUDA code, works on the simulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)
TORCHADA = "0.1.103"
EXPECTED = {
    "platform",
    "device_is_musa",
    "availability_stays_false",
    "nccl_becomes_mccl",
    "streams_and_events",
    "autocast_of_amp",
}


def test_cuda_code_runs_on_musa_and_nccl_becomes_mccl(
    run_ranks: Callable[..., Any], all_ok: Callable[..., None], aside: Any
) -> None:
    # Not imported here: it patches torch for the whole process.
    found = aside.version("torchada")
    if found is None:
        pytest.skip("torchada is not installed (ci/stack.py puts it aside)")
    assert found == TORCHADA
    all_ok(run_ranks("torchada_job.py", env={"PYTHONPATH": aside.python_path()}), EXPECTED)
