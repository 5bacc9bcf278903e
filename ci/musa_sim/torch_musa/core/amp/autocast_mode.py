"""``torch.musa.amp.autocast``."""

from __future__ import annotations

import functools

import torch

__all__ = ["autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast_mode.autocast):  # noqa: N801 (the name torch.cuda.amp has)
    """``torch.autocast("musa")``; float16 by default."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None
    ) -> None:
        super().__init__("musa", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="musa")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="musa")
