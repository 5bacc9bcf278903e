"""Patches for upstream packages: declared, ordered, fingerprinted, applied when their target is first imported.

A patch file needs only :class:`Patch` and :class:`RemoveWhen` from here. A launcher calls :func:`activation_env`
and puts the result into the environment of every process of a run; afterwards it calls :func:`gather`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_musa.patching.model import ABSENT, MISSING, Patch, PatchError, RemoveWhen

if TYPE_CHECKING:
    from verl_musa.patching.records import Gathered, gather
    from verl_musa.patching.series import Series, activation_env, load_series

__all__ = [
    "ABSENT",
    "MISSING",
    "Gathered",
    "Patch",
    "PatchError",
    "RemoveWhen",
    "Series",
    "activation_env",
    "gather",
    "load_series",
]

_LAZY = {
    "Gathered": "records",
    "gather": "records",
    "Series": "series",
    "activation_env": "series",
    "load_series": "series",
}


def __getattr__(name: str) -> Any:
    """Import the launcher's half on first use: a worker that applies a patch never needs YAML or tables."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
