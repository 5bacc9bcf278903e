"""What ``verl_musa_start.pth`` runs at interpreter start, in every process that carries one of our variables.

Every process of a run pays for it: launchers, Ray workers, SGLang's scheduler and detokenizer, multiprocessing
children. So it imports nothing that the interpreter has not loaded already, not even json or typing (25 and 13 ms on
a slow core). Without ``VERL_MUSA_PATCHES`` the ``.pth`` line does not import this module at all. With it, one import
finder is installed; it answers for the target modules of the series and for nothing else, so any other import
costs one set look-up, and the patching engine is imported only when a target module is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own costs an import; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from verl_musa.patching.apply import Applier

PLAN_ENV = "VERL_MUSA_PATCHES"
PLAN_MARK = "verl-musa-patches-1"
"""First part of the variable's value; then, after semicolons, the target modules and the plan as JSON."""


class PatchingLoader:
    """Stands in for a target module's loader until the module is executed, then steps aside.

    It checks before the module runs and patches right after, inside the import system's own per-module lock, so
    that no other thread sees the module half patched. ``__spec__.loader`` is the real loader again afterwards.
    """

    def __init__(self, loader: Any, finder: PatchFinder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the real loader make the module (None: the default)."""
        create = getattr(self._loader, "create_module", None)
        return create(spec) if create is not None else None

    def exec_module(self, module: ModuleType) -> None:
        """Check the fingerprints, execute the module, apply its patches.

        Raises:
            PatchError: the installed upstream is not what a patch was written for.
        """
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._finder.applier.import_module(module, self._loader)


class PatchFinder:
    """A meta-path finder that knows exactly the target modules of one plan."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.modules, self._plan = split_plan(text)
        self._applier: Applier | None = None

    @property
    def digest(self) -> str:
        """The short hash of the plan, by which processes are compared."""
        from verl_musa.patching.loading import digest

        return digest(self.text.encode())

    @property
    def applier(self) -> Applier:
        """The engine, imported at the first target."""
        if self._applier is None:
            from verl_musa.patching.apply import Applier

            self._applier = Applier(self._plan, self.text)
        return self._applier

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the next finders give for a target module, with our loader around theirs."""
        if fullname not in self.modules:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                spec.loader = PatchingLoader(spec.loader, self)  # type: ignore[assignment]
                return spec
        return None


def split_plan(text: str) -> tuple[frozenset[str], str]:
    """Return the target modules and the JSON of the plan that ``VERL_MUSA_PATCHES`` carries.

    Raises:
        ValueError: it is not a plan of this version of verl-musa.
    """
    mark, _, rest = text.partition(";")
    names, separator, plan = rest.partition(";")
    if mark != PLAN_MARK or not separator or not plan.startswith("{"):
        raise ValueError(f"found {text[:40]!r}; expected {PLAN_MARK};MODULES;JSON")
    return frozenset(filter(None, names.split(","))), plan


def installed_finder() -> PatchFinder | None:
    """Return this process's finder, None when no series is active."""
    return next((finder for finder in sys.meta_path if isinstance(finder, PatchFinder)), None)


def activate(text: str) -> PatchFinder:
    """Activate a plan in this process; targets that are imported already are patched at once.

    Raises:
        ValueError: ``text`` is not a plan, or this process runs another one.
        PatchError: a target that is imported already does not fit its patch.
    """
    present = installed_finder()
    if present is not None:
        if present.text != text:
            raise ValueError("this process already runs another patch series")
        return present
    finder = PatchFinder(text)
    sys.meta_path.insert(0, finder)
    for name in sorted(finder.modules & sys.modules.keys()):
        finder.applier.patch_imported(sys.modules[name])
    return finder


def start() -> None:
    """Activate what the environment asks for, or end the process: it must not run without its patches.

    Raises:
        SystemExit: the variable holds no plan. (site.py swallows any other exception of a ``.pth`` line.)
    """
    text = os.environ.get(PLAN_ENV)
    if not text:
        return
    try:
        activate(text)
    except ValueError as error:
        sys.stderr.write(
            f"verl-musa: error: {PLAN_ENV} cannot be used: {error}\n"
            "  next step: unset it, or let `verl-musa run` set it (verl_musa.patching.activation_env)\n"
        )
        raise SystemExit(2) from None


start()
