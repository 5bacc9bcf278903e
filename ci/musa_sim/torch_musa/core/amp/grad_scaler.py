"""``torch.musa.amp.GradScaler``."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("musa")``, with its defaults."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("musa", *args, **kwargs)
