"""``torch.musa.amp``."""

from __future__ import annotations

from torch_musa.core.amp import GradScaler, amp_definitely_not_available, autocast, custom_bwd, custom_fwd

__all__ = ["GradScaler", "amp_definitely_not_available", "autocast", "custom_bwd", "custom_fwd"]
