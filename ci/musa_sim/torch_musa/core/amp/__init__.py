"""Mixed precision: torch.amp with the device filled in."""

from __future__ import annotations

from torch_musa.core.amp.autocast_mode import autocast, custom_bwd, custom_fwd
from torch_musa.core.amp.common import amp_definitely_not_available
from torch_musa.core.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "amp_definitely_not_available", "autocast", "custom_bwd", "custom_fwd"]
