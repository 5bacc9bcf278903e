"""What a patch file declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeVar

from verl_musa.errors import VerlMusaError

Kind = Literal["replace", "wrap", "attribute"]
Device = Literal["any", "musa", "simulated"]
Function = TypeVar("Function", bound=Callable[..., Any])

ABSENT = "absent"
"""The fingerprint of a target that the upstream's module does not bind."""

MISSING: Any = object()
"""What an attribute patch receives as the current value where the module has none."""

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class PatchError(VerlMusaError):
    """A patch that cannot be used as declared, or an upstream that is not what it was written for."""


@dataclass(frozen=True, kw_only=True)
class RemoveWhen:
    """When a patch can be deleted.

    Attributes:
        text: the condition in words.
        version: met when the upstream's version is in this specifier, for example ``>=0.10``.
        defines: met when the upstream's source binds this ``package.module:qualname``.
    """

    text: str
    version: str | None = None
    defines: str | None = None

    def __post_init__(self) -> None:
        if self.defines is not None:
            split_target(self.defines)


@dataclass(frozen=True)
class Change:
    """One target and how its new value is made from the current one.

    Attributes:
        target: ``package.module:qualname``.
        kind: how the new value relates to the old one.
        make: returns the new value for the current one (``MISSING`` where there is none).
        unbound: the upstream's class or module does not bind the name itself: a base class does, or nothing does
            and the attribute is added. Should upstream begin to bind it, that is drift.
    """

    target: str
    kind: Kind
    make: Callable[[Any], Any]
    unbound: bool = False


@dataclass(kw_only=True)
class Patch:
    """One patch: why it is there, what it was written against and, through the decorators, what it does.

    Attributes:
        id: ``<folder>-<file name with dashes>``.
        summary: what is different afterwards, one line.
        distribution: the upstream, as its wheel is named.
        versions: the upstream versions that need it, as a specifier (``>=0.9,<0.10``).
        fingerprints: per target, per recorded version, the SHA-256 of the target's normalised syntax tree. A target
            that no change names is watched: the patch relies on it, and refuses when it drifts.
        reason: what goes wrong in upstream.
        source: where that is known from.
        remove_when: the condition under which the file is deleted.
        without: text of the failure that is seen when the patch is off (its test looks for it).
        devices: ``any``, or only real (``musa``) or only simulated devices.
    """

    id: str
    summary: str
    distribution: str
    versions: str
    fingerprints: Mapping[str, Mapping[str, str]]
    reason: str
    source: str
    remove_when: RemoveWhen
    without: str
    devices: tuple[Device, ...] = ("any",)
    changes: list[Change] = field(default_factory=list, init=False)
    probe: Callable[[ModuleType], str | None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise PatchError("not a patch id", where=self.id, expected="lower-case words joined by dashes")
        for target in self.fingerprints:
            split_target(target)

    def replace(self, target: str) -> Callable[[Function], Function]:
        """Declare that the decorated function or class takes the target's place."""

        def register(function: Function) -> Function:
            self._add(Change(target, "replace", lambda _original: function))
            return function

        return register

    def wrap(self, target: str, *, unbound: bool = False) -> Callable[[Function], Function]:
        """Declare that the decorated factory returns the target's new value, given the current one."""

        def register(factory: Function) -> Function:
            self._add(Change(target, "wrap", factory, unbound))
            return factory

        return register

    def attribute(self, target: str, *, unbound: bool = False) -> Callable[[Function], Function]:
        """Declare that the decorated factory returns the attribute's new value, given the current one or MISSING."""

        def register(factory: Function) -> Function:
            self._add(Change(target, "attribute", factory, unbound))
            return factory

        return register

    def unless(self, probe: Function) -> Function:
        """Declare a probe: called with the executed module, it returns why the patch is not needed, or None."""
        self.probe = probe
        return probe

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose import this patch must see, in declaration order."""
        return tuple(dict.fromkeys(split_target(target)[0] for target in self.fingerprints))

    def targets_in(self, module: str) -> list[str]:
        """Return the fingerprinted targets, changed or watched, that live in ``module``."""
        return [target for target in self.fingerprints if split_target(target)[0] == module]

    def changes_in(self, module: str) -> list[Change]:
        """Return the changes to ``module``, in declaration order."""
        return [change for change in self.changes if split_target(change.target)[0] == module]

    def _add(self, change: Change) -> None:
        if change.target not in self.fingerprints:
            raise PatchError(
                "a change whose target has no fingerprints",
                where=self.id,
                found=change.target,
                expected=f"one of {', '.join(self.fingerprints) or 'none declared'}",
                fix=f"add it to `fingerprints`, then run `verl-musa patches record {self.id} --write`",
            )
        self.changes.append(change)


def split_target(target: str) -> tuple[str, str]:
    """Split ``package.module:qualname``.

    Raises:
        PatchError: it has another shape.
    """
    if not _TARGET.fullmatch(target):
        raise PatchError("not a patch target", where=target, expected="package.module:qualname")
    module, _, qualname = target.partition(":")
    return module, qualname
