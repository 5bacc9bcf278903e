"""Check and apply patches inside one process. Imported when the first target module is."""

from __future__ import annotations

import abc
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from verl_musa._start import PLAN_ENV
from verl_musa.patching.fingerprint import SourceModule
from verl_musa.patching.loading import load_patch, patch_file, patches_root
from verl_musa.patching.model import ABSENT, MISSING, Change, Patch, PatchError, split_target
from verl_musa.patching.records import ProcessRecord, digest_plan
from verl_musa.patching.versions import accepted, in_range, installed_version, is_known


@dataclass(frozen=True)
class Step:
    """A patch that fits one module, with what was found there."""

    patch: Patch
    version: str | None
    changes: tuple[Change, ...]
    fingerprints: Mapping[str, str]


class Applier:
    """Applies one plan's patches to modules as they are imported, and records what it did."""

    def __init__(self, plan: str, text: str) -> None:
        """Read the plan's JSON; by the hash of the variable's whole text processes compare themselves.

        Raises:
            PatchError: it is not a plan, or its series is not on this host.
        """
        self._plan = read_plan(plan)
        self._root = patches_root() if self._plan["root"] is None else Path(self._plan["root"])
        self._record = ProcessRecord(self._plan, digest_plan(text))
        self._patches: dict[str, Patch] = {}
        self._refusal: str | None = None

    def import_module(self, module: ModuleType, loader: Any) -> None:
        """Check the module's source, execute it with its own loader and patch it.

        Raises:
            PatchError: a fingerprint does not match, or a patch fails; the import then fails with it.
        """
        steps = self._check(module, loader)
        loader.exec_module(module)
        self._apply(module, steps)

    def patch_imported(self, module: ModuleType) -> None:
        """Patch a module that was imported before the series was activated."""
        spec = module.__spec__
        self._apply(module, self._check(module, spec.loader if spec is not None else None))

    def _check(self, module: ModuleType, loader: Any) -> list[Step]:
        if self._refusal is not None:
            raise PatchError(f"this process was refused before: {self._refusal}", where=module.__name__)
        try:
            source = _source(module, loader)
            entries = [entry for entry in self._plan["patches"] if module.__name__ in entry["modules"]]
            found = [self._step(entry, module, source) for entry in entries]
        except PatchError as error:
            self._refuse(error)
            raise
        return [step for step in found if step is not None]

    def _refuse(self, error: PatchError) -> None:
        """Make the refusal stick: an import wrapped in ``except Exception`` must not turn it into a fallback."""
        self._refusal = str(error)
        sys.stderr.write(f"verl-musa: error: {error}\n")
        self._record.refused(error)
        self._record.write()

    def _step(self, entry: Mapping[str, Any], module: ModuleType, source: SourceModule) -> Step | None:
        patch = self._patches.get(entry["id"])
        if patch is None:
            patch = load_patch(self._root, entry["id"], expected=entry["file"])
            self._patches[patch.id] = patch
        version = installed_version(patch.distribution)
        if version is not None and not in_range(patch.versions, version):
            if not is_known(version, self._plan["upstreams"].get(patch.distribution, ())):
                raise self._unknown_version(patch, version, module)
            self._record.skipped(patch, f"{patch.distribution} {version} is outside {patch.versions}")
            return None
        found: dict[str, str] = {}
        for target in patch.targets_in(module.__name__):
            found[target] = source.fingerprint(split_target(target)[1])
            if found[target] not in accepted(patch, target, version):
                line = source.line(split_target(target)[1])
                where = f"{_file(module)}:{line}" if line else _file(module)
                self._drift(patch, target, found[target], version, where=where)
        changes = tuple(
            change
            for change in patch.changes_in(module.__name__)
            if found[change.target] != ABSENT or change.unbound or patch.id in self._plan["allow_drift"]
        )
        return Step(patch, version, changes, found)

    def _drift(
        self,
        patch: Patch,
        target: str,
        found: str,
        version: str | None,
        *,
        where: str,
    ) -> None:
        if patch.id in self._plan["allow_drift"]:
            self._record.drifted(patch, target, found)
            return
        fits = accepted(patch, target, version)
        expected = ", ".join(f"{value} ({patch.distribution} {at})" for value, at in fits.items())
        raise PatchError(
            f"patch {patch.id} does not fit {patch.distribution} {version or '(no metadata)'}: {target} differs",
            where=where,
            found=found,
            expected=f"{expected or 'a recorded version'}, recorded in {patch_file(self._root, patch.id)}",
            fix="compare the two, then `verl-musa patches record` (docs/upgrading.md); or install a supported "
            f"version; or accept the risk for this run with --allow-drift {patch.id}",
        )

    def _unknown_version(self, patch: Patch, version: str, module: ModuleType) -> PatchError:
        supported = ", ".join(self._plan["upstreams"].get(patch.distribution, ()))
        return PatchError(
            f"nobody has verified patch {patch.id} for {patch.distribution} {version}",
            where=_file(module),
            found=f"{patch.distribution} {version}",
            expected=f"{patch.versions}; supported: {supported}",
            fix=f"verl-musa patches verify --against {patch.distribution}=={version} (docs/upgrading.md)",
        )

    def _apply(self, module: ModuleType, steps: list[Step]) -> None:
        self._record.seen(module.__name__)
        for step in steps:
            reason = step.patch.probe(module) if step.patch.probe is not None else None
            if reason is not None:
                self._record.skipped(step.patch, reason)
                continue
            for change in step.changes:
                try:
                    change_target(module, change, step.patch.id)
                except Exception as error:
                    failure = PatchError(
                        f"patch {step.patch.id} cannot be applied to {change.target}",
                        where=str(patch_file(self._root, step.patch.id)),
                        found=f"{type(error).__name__}: {error}",
                    )
                    self._refuse(failure)
                    raise failure from error
            if step.changes:
                self._record.applied(step.patch, step.version, step.fingerprints)
        self._record.write()


def read_plan(plan: str) -> dict[str, Any]:
    """Return the plan that its JSON describes.

    Raises:
        PatchError: it is cut short or was made by something else.
    """
    keys = {"series", "root", "upstreams", "patches", "allow_drift"}
    try:
        content = json.loads(plan)
    except ValueError as error:
        raise PatchError("the patch plan cannot be read", where=PLAN_ENV, found=str(error)) from error
    if not keys <= content.keys():
        raise PatchError(
            "not a patch plan",
            where=PLAN_ENV,
            found=", ".join(sorted(content)),
            expected=", ".join(sorted(keys)),
            fix="let `verl-musa run` set it (verl_musa.patching.activation_env)",
        )
    return dict(content)


def change_target(module: ModuleType, change: Change, patch_id: str) -> None:
    """Give one target its new value, keeping static and class methods what they are.

    Copies of a function or class that its module defines and that other modules of the package took (``from x import
    f`` in an import cycle, or before activation) are replaced too. A name that the module only imported is
    changed in this module alone.

    Raises:
        AttributeError: an owner on the way to the target is missing, or the target itself.
    """
    *owners, name = split_target(change.target)[1].split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    current = getattr(owner, name, MISSING) if change.unbound else vars(owner).get(name, MISSING)
    if current is MISSING and change.kind != "attribute":
        raise AttributeError(f"{change.target} is not there after the import")
    method = current if isinstance(current, staticmethod | classmethod) else None
    plain = method.__func__ if method is not None else current
    value = change.make(plain)
    own = getattr(plain, "__module__", None) == module.__name__
    if change.kind != "attribute":
        if own:
            _dress(value, plain, patch_id)
        if method is not None:
            value = type(method)(value)
    setattr(owner, name, value)
    if isinstance(owner, type):
        abc.update_abstractmethods(owner)
    if own and owner is module and isinstance(current, FunctionType | type):
        _replace_copies(module.__name__.partition(".")[0], current, value)


def _dress(value: Any, original: Any, patch_id: str) -> None:
    """Give the new function its target's name, so that it pickles by reference and tracebacks read well."""
    if value is original or not isinstance(value, FunctionType | type):
        return
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        if (inherited := getattr(original, attribute, None)) is not None:
            setattr(value, attribute, inherited)
    value.__verl_musa_patch__ = patch_id  # type: ignore[union-attr]


def _replace_copies(package: str, original: object, value: object) -> None:
    prefix = f"{package}."
    for name, module in list(sys.modules.items()):
        if not (name == package or name.startswith(prefix)) or not isinstance(module, ModuleType):
            continue
        for attribute, held in list(vars(module).items()):
            if held is original:
                setattr(module, attribute, value)


def _source(module: ModuleType, loader: Any) -> SourceModule:
    read = getattr(loader, "get_source", None)
    try:
        text = read(module.__name__) if read is not None else None
        if text is None:
            raise PatchError(
                "a patch target has no Python source, so nothing can be fingerprinted",
                where=_file(module),
                found=f"{module.__name__} from {type(loader).__name__}",
                expected="a module with a .py file",
            )
        return SourceModule(text, _file(module))
    except (SyntaxError, OSError, ImportError) as error:
        raise PatchError("a patch target cannot be read", where=_file(module), found=str(error)) from error


def _file(module: ModuleType) -> str:
    spec = module.__spec__
    origin = spec.origin if spec is not None else None
    return origin or getattr(module, "__file__", None) or module.__name__
