"""Sharing of device tensors between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

EXPECTED = {
    "a view through a queue",
    "a parameter through a queue",
    "a handle through plain pickle",
    "the device of a handle can be rewritten",
    "a shared tensor still works",
    "a result that needs history is refused",
    "CPU tensors keep torch's own way",
    "the child ended well",
}


def test_tensors_are_shared_with_a_spawned_process(
    run_ranks: Callable[..., Any], all_ok: Callable[..., None]
) -> None:
    all_ok(run_ranks("share_job.py", world=1, env={"MUSA_SIM_DEVICES": "2"}), EXPECTED)
