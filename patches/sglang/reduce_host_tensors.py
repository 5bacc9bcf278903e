"""SGLang rewrites the device index inside every tensor that it hands over, and a host tensor has none."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "sglang.srt.utils.patch_torch"
TARGET = f"{MODULE}:_reduce_tensor_modified"
INSTALLER = f"{MODULE}:monkey_patch_torch_reductions"

PATCH = Patch(
    id="sglang-reduce-host-tensors",
    summary="host tensors are handed over as torch does it",
    distribution="sglang",
    versions=">=0.5.12,<0.6",
    fingerprints={
        "sglang.srt.utils.patch_torch:_reduce_tensor_modified": {
            "0.5.12": "c679a1782c7d69f5dac7a0a8bdc050bde32a21a306a6a46d0eef96169640eee8",
            "0.5.19": "c679a1782c7d69f5dac7a0a8bdc050bde32a21a306a6a46d0eef96169640eee8",
            "0.5.23": "c679a1782c7d69f5dac7a0a8bdc050bde32a21a306a6a46d0eef96169640eee8",
        },
        "sglang.srt.utils.patch_torch:monkey_patch_torch_reductions": {
            "0.5.12": "41eacdd83c379ab3168881355166ac54c695b3b51bc82d8b20c43ea85dd8a022",
            "0.5.19": "41eacdd83c379ab3168881355166ac54c695b3b51bc82d8b20c43ea85dd8a022",
            "0.5.23": "41eacdd83c379ab3168881355166ac54c695b3b51bc82d8b20c43ea85dd8a022",
        },
    },
    reason="Where a device has no IPC the weights travel through host memory, and SGLang's reducer indexes a place of "
    "the reduced tensor that only device tensors have.",
    source="SGLang 0.5.19, srt/utils/patch_torch.py",
    remove_when=RemoveWhen(text="SGLang leaves host tensors to torch, or no supported device lacks IPC"),
    without="tuple index out of range",
)


@PATCH.unless
def _already_routed(module: ModuleType) -> str | None:
    routed = getattr(module._reduce_tensor_modified, "leaves_host_tensors", False)
    return "host tensors are left to torch already" if routed else None


@PATCH.wrap(TARGET)
def _leave_host_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _reduce_tensor_modified(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type != "cpu":
            return original(tensor, *args, **kwargs)
        from torch.multiprocessing import reductions

        # SGLang keeps torch's own reducer there when it installs this one.
        return reductions._reduce_tensor_original(tensor, *args, **kwargs)

    _reduce_tensor_modified.leaves_host_tensors = True  # type: ignore[attr-defined]
    return _reduce_tensor_modified
