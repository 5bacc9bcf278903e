"""With a torch.musa whose flag was copied too early, checkpointing must still save the device's random state."""

import sys
from types import ModuleType
from typing import Any

import torch
from torch.utils import checkpoint

musa = ModuleType("torch.musa")
musa._initialized = False  # type: ignore[attr-defined]
started = False
musa.is_initialized = lambda: started  # type: ignore[attr-defined]
torch.musa = musa
saved: list[Any] = []
checkpoint._infer_device_type = lambda *_: "musa"
checkpoint._get_autocast_kwargs = lambda *_: ({}, {})


def states(*_tensors: Any) -> tuple[list[int], list[Any]]:
    saved.append(True)
    return [], []


checkpoint.get_device_states = states


def forward() -> bool:
    saved.clear()
    checkpoint.CheckpointFunction.apply(lambda value: value * 2, True, torch.ones(1, requires_grad=True))
    return bool(saved)


if forward():
    raise SystemExit("a device that was never used was initialised")
started = True
if not forward():
    sys.exit("the device's random state is not saved")
