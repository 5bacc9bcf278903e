"""torchada, which turns torch.cuda into torch.musa for CUDA code, works on the simulated device."""

from __future__ import annotations

import importlib.metadata
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
    run_ranks: Callable[..., Any], all_ok: Callable[..., None]
) -> None:
    # Not imported here: it patches torch for the whole process.
    try:
        found = importlib.metadata.version("torchada")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("torchada is not installed (pip install --no-deps torchada)")
    assert found == TORCHADA
    all_ok(run_ranks("torchada_job.py"), EXPECTED)
