"""Data, fully sharded and tensor parallel training on two simulated devices equals the same on cpu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

EXPECTED = {
    "ddp",
    "fsdp2",
    "fsdp2_bfloat16",
    "fsdp1",
    "tensor_parallel",
    "device_rng_of_dtensors",
    "checkpoint",
}


def test_parallel_training_equals_cpu(run_ranks: Callable[..., Any], all_ok: Callable[..., None]) -> None:
    all_ok(run_ranks("parallel_job.py"), EXPECTED)
