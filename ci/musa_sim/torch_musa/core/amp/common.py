"""What torchada asks about mixed precision."""

from __future__ import annotations

from torch_musa import _C

__all__ = ["amp_definitely_not_available"]


def amp_definitely_not_available() -> bool:
    """True only if there is no device."""
    return int(_C.device_count()) == 0
