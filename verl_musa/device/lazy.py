"""Run a function right after a module was imported, without importing it now.

verl imports its plugins in every process, most of which never build an engine or a rollout. Registering those eagerly
would import transformers and SGLang everywhere (15 s of CPU time each); a post-import hook costs nothing until used.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class _RunAfter(Loader):
    """Wraps a loader: executes the module, then the actions. An action's error fails the import, loudly."""

    def __init__(self, loader: Loader, actions: Sequence[Action]) -> None:
        self._loader = loader
        self._actions = tuple(actions)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            # Code that reads the loader later (pkgutil, importlib.resources) must meet the real one.
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for action in self._actions:
            action(module)


class _PostImportFinder(MetaPathFinder):
    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module with the other finders and wrap its loader."""
        del path, target
        if fullname not in self.actions or getattr(self._searching, "name", None) == fullname:
            return None
        self._searching.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.name = None
        if spec is None or spec.loader is None:
            return None
        spec.loader = _RunAfter(spec.loader, self.actions[fullname])
        return spec


_finder = _PostImportFinder()


def when_imported(name: str, action: Action) -> None:
    """Call ``action(module)`` once ``name`` has been imported; now, if it already has been.

    Raises:
        Exception: whatever ``action`` raises, either here or from the import statement that triggers it.
    """
    if name in sys.modules:
        action(sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.actions.setdefault(name, []).append(action)
