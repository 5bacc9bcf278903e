"""The device's real compute capability, where a training overlay in the same image pretends another one.

Some vendor overlays for Megatron report (8, 0) or (8, 3), so that CUDA code takes its paths for such cards. SGLang chooses
attention kernels by it and must see the real value: (3, 1) on an S5000.
"""

from __future__ import annotations

import sys
from typing import Any

GETTER = "get_device_capability"
GENUINE = ("torch.", "torch_musa")


def restore() -> list[str]:
    """Put the capability of the device's own properties back where another function stands. Touches no device.

    Returns:
        the names (``torch.musa``, ``torch.cuda``) under which it had been replaced; none in a process without torch_musa.
    """
    torch = sys.modules.get("torch")
    musa = getattr(torch, "musa", None)
    if torch is None or musa is None:
        return []

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        """As the device's properties have it: (major, minor)."""
        properties = musa.get_device_properties(device)
        return int(properties.major), int(properties.minor)

    get_device_capability.__module__ = __name__
    restored = []
    for name in ("musa", "cuda"):
        space = getattr(torch, name)
        module = getattr(getattr(space, GETTER, None), "__module__", None) or ""
        if not module.startswith((*GENUINE, __name__)):
            setattr(space, GETTER, get_device_capability)
            restored.append(f"torch.{name}")
    return restored
