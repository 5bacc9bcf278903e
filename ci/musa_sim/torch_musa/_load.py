"""Loads the compiled part as ``torch_musa._C``."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType

from torch_musa import _build

NAME = "torch_musa._C"


def load_extension() -> ModuleType:
    """The compiled module, built first if its cache is cold. Raises ImportError with what to do."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    path = str(_build.ensure_built())
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    if spec is None:
        raise ImportError(f"no import spec for {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module
    return module
