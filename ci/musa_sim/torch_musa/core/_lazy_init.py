"""Initialisation. The runtime initialises at the first use of a device; a fork after that is refused in the child."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_musa import _C

__all__ = ["init", "is_initialized"]


def init() -> None:
    """Initialises the runtime now. Raises RuntimeError without a visible device and in a forked child."""
    _C.ensure_initialized()


def is_initialized() -> bool:
    """Whether this process has used a device, in it or (in a forked child) before the fork."""
    return bool(_C.is_initialized()) and not _is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    return bool(_C.is_in_bad_fork())


def _lazy_init() -> None:
    _C.ensure_initialized()


def _lazy_call(callable_: Callable[[], Any], **_kwargs: Any) -> None:
    # Nothing here must wait for a driver, so the call need not be queued.
    callable_()
