"""Import one real upstream module without what surrounds it: packages hollow, other imports stubs.

The module's own source runs unchanged, through the import hooks, in the scenario's fresh process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SKIP = 77
"""Exit code of a scenario that cannot be played here; its last line on stderr says why."""


class AnyMeta(type):
    """A class any attribute of which is another such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = AnyMeta(name, (Anything,), {})
        setattr(cls, name, made)
        return made


class Anything(metaclass=AnyMeta):
    """Takes any arguments; used as a decorator it returns what it decorates."""

    def __new__(cls, *args: Any, **_options: Any) -> Any:
        if len(args) == 1 and callable(args[0]):
            return args[0]
        return super().__new__(cls)

    def __init__(self, *_args: Any, **_options: Any) -> None:
        """Take anything."""

    def __call__(self, function: Any) -> Any:
        return function


class Stub(ModuleType):
    """A package in which every name and every submodule exists."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = AnyMeta(name, (Anything,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Stubs:
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module


def load(name: str, *, distribution: str, stubs: Sequence[str]) -> ModuleType:
    """Import the real module ``name``; ``stubs`` and all below them are stubs, parents of ``name`` are empty."""
    sys.meta_path.append(_Stubs(stubs))
    for stub in stubs:
        # In front of what is really installed.
        sys.modules.setdefault(stub, Stub(stub))
    root = Path(str(metadata.distribution(distribution).locate_file("")))
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        module = ModuleType(package)
        module.__path__ = [str(root.joinpath(*parts[:depth]))]
        sys.modules[package] = module
    return importlib.import_module(name)
