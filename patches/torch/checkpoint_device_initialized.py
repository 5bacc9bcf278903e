"""torch.utils.checkpoint asks a flag of torch.musa that torch_musa copied before it was set."""

from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "torch.utils.checkpoint"
TARGET = f"{MODULE}:_get_device_module"

PATCH = Patch(
    id="torch-checkpoint-device-initialized",
    summary="recomputation restores the device's random state on MUSA, so dropout's gradients are right",
    distribution="torch",
    versions=">=2.7,<2.15",
    fingerprints={
        "torch.utils.checkpoint:_get_device_module": {
            "2.13.0": "7876a100621c6da9c6dd0ac1d000f7301ad97861c8385f90dc641474f966580a",
        },
    },
    reason="Activation checkpointing saves the device's random state only if the device module's `_initialized` is true. "
    "torch_musa 2.7.1 imports that name by value, so it stays False, and dropout draws another mask when it is "
    "recomputed: the gradients are wrong without any error.",
    source="torch_musa 2.7.1, read, not run; torch, utils/checkpoint.py",
    remove_when=RemoveWhen(
        text="torch.musa._initialized follows the device in every torch_musa that is used"
    ),
    without="the device's random state is not saved",
)


@PATCH.wrap(TARGET)
def _with_live_flag(original: Callable[..., Any]) -> Callable[..., Any]:
    def _get_device_module(device: str = "cuda") -> Any:
        module = original(device)
        if device == "musa" and not getattr(module, "_initialized", False) and module.is_initialized():
            module._initialized = True
        return module

    return _get_device_module
