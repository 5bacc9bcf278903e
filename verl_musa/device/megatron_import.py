"""torchada before Megatron: the one place that keeps this order.

Megatron-Core speaks CUDA only: ``torch.cuda.current_device()``, ``.cuda()``, ``device="cuda"``. torchada redirects all of
it to MUSA, for the whole process and from its import on, but not what a module has already taken by name. So it is
imported right before the first module of ``megatron``, whoever imports that, and in no process that has no Megatron.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

logger = logging.getLogger(__name__)

PACKAGE = "megatron"
REDIRECT = "torchada"


class _RedirectFirst:
    """A meta-path finder that finds nothing: asked for Megatron, it imports torchada and lets the others find it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Import torchada if ``fullname`` is Megatron's package.

        Raises:
            ImportError: torchada is there but fails.
        """
        del path, target
        if fullname == PACKAGE:
            sys.meta_path.remove(self)
            redirect()
        return None


def redirect() -> None:
    """Import torchada, unless the image has a Megatron of its own that does without."""
    if importlib.util.find_spec(REDIRECT) is None:
        logger.warning("Megatron is imported without %s: this Megatron must know MUSA by itself", REDIRECT)
        return
    importlib.import_module(REDIRECT)


def arm() -> None:
    """Redirect at the first import of Megatron; call once in a process that asks for musa.

    Raises:
        RuntimeError: Megatron was imported before without torchada; what it took from torch cannot be redirected any more.
    """
    if PACKAGE in sys.modules:
        if REDIRECT not in sys.modules and importlib.util.find_spec(REDIRECT) is not None:
            raise RuntimeError(
                f"{PACKAGE} was imported before {REDIRECT}: import verl first, or {REDIRECT} by hand, so that Megatron's "
                "calls of torch.cuda mean MUSA"
            )
        return
    if not any(isinstance(finder, _RedirectFirst) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RedirectFirst())
