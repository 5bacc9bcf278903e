"""Which versions a patch is for, and which fingerprints it accepts. Shared by the workers and by `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from verl_musa.patching.model import ABSENT, Patch


def public(version: str) -> str:
    """Return ``version`` without its local part (``2.13.0+cpu`` is ``2.13.0``), unchanged where it has none."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def installed_version(distribution: str) -> str | None:
    """Return the installed public version, None for a source tree without metadata."""
    try:
        return public(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return None


def in_range(specifier: str, version: str) -> bool:
    """Return whether ``version`` is in ``specifier``; post-releases and pre-releases count."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def is_known(version: str, supported: Sequence[str]) -> bool:
    """Return whether the series supports ``version``."""
    return version in supported


def accepted(patch: Patch, target: str, version: str | None) -> dict[str, str]:
    """Return the fingerprints a target may have, each with the version it was recorded at.

    At a recorded version only that one fits. At any other version of the range (a vendor's post-release, a source
    tree without metadata) code equal to any recorded state fits, but an absent target does not: nobody looked.
    """
    recorded = patch.fingerprints[target]
    if version is not None and version in recorded:
        return {recorded[version]: version}
    unbound = any(change.unbound for change in patch.changes if change.target == target)
    return {found: at for at, found in recorded.items() if found != ABSENT or unbound}
