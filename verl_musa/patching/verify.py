"""Compare a series with upstream sources: drift, patches that can go, targets touched twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

from verl_musa.patching.fingerprint import SourceModule
from verl_musa.patching.model import ABSENT, Patch, PatchError, RemoveWhen, split_target
from verl_musa.patching.series import Series
from verl_musa.patching.sources import DownloadError, InstalledSource, Source, open_requirement
from verl_musa.patching.versions import accepted, in_range, installed_version, is_known


class Status(StrEnum):
    """What was seen of one target at one version."""

    OK = "ok"
    DRIFT = "drift"
    NOT_NEEDED = "not needed"
    NOT_INSTALLED = "not installed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Row:
    """One target of one patch at one version of its upstream.

    Attributes:
        patch: its id.
        target: ``package.module:qualname``.
        distribution: the upstream.
        version: empty where it is not installed.
        status: what was seen.
        where: file and line, where there is one.
        found: fingerprint found, ABSENT, or empty.
        expected: fingerprints that would have fitted.
        note: why, in words.
    """

    patch: str
    target: str
    distribution: str
    version: str
    status: Status
    where: str = ""
    found: str = ""
    expected: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Removable:
    """A patch whose removal condition is met."""

    patch: str
    distribution: str
    version: str
    condition: str


@dataclass(frozen=True)
class Report:
    """The outcome of `verl-musa patches verify`."""

    series: str
    rows: tuple[Row, ...]
    removable: tuple[Removable, ...]
    doubled: Mapping[str, tuple[str, ...]]

    @property
    def drifted(self) -> tuple[Row, ...]:
        """The rows that a worker would refuse."""
        return tuple(row for row in self.rows if row.status is Status.DRIFT)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The supported versions that could not be had, and why: nothing is known about them."""
        return tuple(
            dict.fromkeys(
                f"{row.distribution}=={row.version}: {row.note}"
                for row in self.rows
                if row.status is Status.NOT_CHECKED
            )
        )


def verify(series: Series, *, against: Sequence[str] = (), supported: bool = False) -> Report:
    """Check every patch's targets.

    Args:
        series: what to check.
        against: ``DIST==VERSION`` or archive paths; default: what is installed.
        supported: all versions that the series supports, downloaded where another one is installed. What cannot be
            downloaded is reported as not checked.

    Raises:
        PatchError: nothing can be checked, or a source of ``against`` cannot be had.
    """
    rows: list[Row] = []
    removable: list[Removable] = []
    for requirement in dict.fromkeys(against):
        _verify_requirement(series, requirement, rows, removable)
    if supported:
        for requirement in _supported(series, rows):
            try:
                _verify_requirement(series, requirement, rows, removable)
            except DownloadError as error:
                name, _, version = requirement.partition("==")
                rows.extend(_without_source(series, name, version, Status.NOT_CHECKED, error.message))
    elif not against:
        _verify_installed(series, rows, removable)
    return Report(series.digest, tuple(rows), tuple(removable), _doubled(series))


def _verify_requirement(
    series: Series, requirement: str, rows: list[Row], removable: list[Removable]
) -> None:
    with open_requirement(requirement) as source:
        if not any(patch.distribution == source.distribution for patch in series.patches):
            raise _no_patches(series, source.distribution)
        _verify_source(series, source, rows, removable)


def _supported(series: Series, rows: list[Row]) -> list[str]:
    """Return what to verify for all supported versions; what is neither installed nor to be had gets its rows here."""
    wanted = []
    for name in dict.fromkeys(patch.distribution for patch in series.patches):
        for version in series.upstreams[name]:
            if name in series.local_only and installed_version(name) != version:
                rows.extend(_without_source(series, name, version))
            else:
                wanted.append(f"{name}=={version}")
    return wanted


def _without_source(
    series: Series, name: str, version: str, status: Status = Status.NOT_INSTALLED, note: str = ""
) -> list[Row]:
    return [
        Row(patch.id, target, name, version, status, note=note)
        for patch in series.patches
        if patch.distribution == name
        for target in patch.fingerprints
    ]


def _verify_installed(series: Series, rows: list[Row], removable: list[Removable]) -> None:
    any_installed = False
    for name in dict.fromkeys(patch.distribution for patch in series.patches):
        try:
            source = InstalledSource(name)
        except metadata.PackageNotFoundError:
            rows.extend(_without_source(series, name, ""))
            continue
        any_installed = True
        _verify_source(series, source, rows, removable)
    if not any_installed:
        raise PatchError(
            "none of the patched upstreams is installed here, so nothing was verified",
            expected=", ".join(series.upstreams),
            fix="run it where they are, or with --against DIST==VERSION or --supported",
        )


def _verify_source(series: Series, source: Source, rows: list[Row], removable: list[Removable]) -> None:
    parsed = _Parsed(source)
    for patch in series.patches:
        if patch.distribution != source.distribution:
            continue
        rows.extend(
            _check(patch, target, parsed, series.upstreams[source.distribution])
            for target in patch.fingerprints
        )
        if condition := _met(patch.remove_when, parsed):
            removable.append(Removable(patch.id, source.distribution, source.version, condition))


def _check(patch: Patch, target: str, parsed: _Parsed, supported: Sequence[str]) -> Row:
    source = parsed.source
    where, found = parsed.look_up(target)
    common = (patch.id, target, source.distribution, source.version)
    if not in_range(patch.versions, source.version):
        if is_known(source.version, supported):
            return Row(*common, Status.NOT_NEEDED, where, found, note=f"outside {patch.versions}")
        note = f"outside {patch.versions}, and not a supported version"
        return Row(*common, Status.DRIFT, where, found, note=note)
    fits = accepted(patch, target, source.version)
    if found in fits:
        note = "" if fits[found] == source.version else f"same code as in {fits[found]}"
        if found == ABSENT:
            note = "not bound by upstream, as recorded"
        return Row(*common, Status.OK, where, found, tuple(fits), note)
    note = "the target is gone" if found == ABSENT else "the target has changed"
    if not patch.fingerprints[target]:
        note = "nothing recorded yet"
    return Row(*common, Status.DRIFT, where, found, tuple(fits), note)


class _Parsed:
    """A source whose modules are parsed once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._modules: dict[str, tuple[str, SourceModule | None]] = {}

    def look_up(self, target: str) -> tuple[str, str]:
        """Return (where, fingerprint) of a target; a missing module is an absent target."""
        name, qualname = split_target(target)
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        where, module = self._modules[name]
        if module is None:
            return where, ABSENT
        line = module.line(qualname)
        return (f"{where}:{line}" if line else where), module.fingerprint(qualname)

    def _parse(self, name: str) -> tuple[str, SourceModule | None]:
        read = self.source.read(name)
        if read is None:
            return f"no module {name}", None
        where, text = read
        try:
            return where, SourceModule(text, where)
        except SyntaxError as error:
            raise PatchError("upstream's source cannot be parsed", where=where, found=str(error)) from error


def _met(condition: RemoveWhen, parsed: _Parsed) -> str | None:
    version = parsed.source.version
    if condition.version is not None and in_range(condition.version, version):
        return f"{condition.text} ({version} is in {condition.version})"
    if condition.defines is not None and parsed.look_up(condition.defines)[1] != ABSENT:
        return f"{condition.text} ({condition.defines} is there)"
    return None


def _doubled(series: Series) -> dict[str, tuple[str, ...]]:
    touching: dict[str, list[str]] = {}
    for patch in series.patches:
        for target in dict.fromkeys(change.target for change in patch.changes):
            touching.setdefault(target, []).append(patch.id)
    return {target: tuple(ids) for target, ids in touching.items() if len(ids) > 1}


def _no_patches(series: Series, distribution: str) -> PatchError:
    return PatchError(
        "the series has no patch for this upstream",
        where="--against",
        found=distribution,
        expected=", ".join(dict.fromkeys(patch.distribution for patch in series.patches)),
    )
