"""mccl: all collectives on two ranks, their counters, and how torch.distributed finds the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
FAMILIES = ("reduce_ops", "gathers", "exchanges")
OTHERS = (
    "uneven_gather",
    "shapes",
    "coalescing",
    "asynchronous",
    "objects",
    "refusals",
    "counted",
    "groups",
    "two_backends",
    "default_backend",
)


def test_every_collective_on_two_ranks(run_ranks: Callable[..., Any], all_ok: Callable[..., None]) -> None:
    expected = {f"{family}[torch.{dtype}]" for family in FAMILIES for dtype in DTYPES} | set(OTHERS)
    all_ok(run_ranks("mccl_job.py"), expected)


def test_mccl_is_registered_at_import() -> None:
    import torch.distributed as dist
    import torch_musa

    assert dist.Backend.default_device_backend_map["musa"] == "mccl"
    assert dist.Backend.backend_capability["mccl"] == ["musa"]
    assert dist.is_mccl_available()
    assert dist.ProcessGroupMCCL is torch_musa.mccl.ProcessGroupMCCL
    assert torch_musa.mccl.version() == (0, 0, 0)


def test_counters_start_empty_and_are_copies() -> None:
    import torch_musa

    torch_musa.mccl.reset_counters()
    found = torch_musa.mccl.counters()
    found["all_reduce"] = {"calls": 1, "bytes": 1}
    assert torch_musa.mccl.counters() == {}
