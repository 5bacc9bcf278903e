"""The ordered series, and the plan that a launcher hands to every process of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from verl_musa._start import PLAN_ENV, PLAN_MARK
from verl_musa.patching.loading import DIGEST_LENGTH, digest, load_patch, patch_file, patches_root
from verl_musa.patching.model import Patch, PatchError

SERIES_FILE = "series.yaml"
SERIES_SCHEMA = 1


@dataclass(frozen=True)
class Series:
    """The patches in the order in which they are applied.

    Attributes:
        root: folder of ``series.yaml``.
        upstreams: per distribution, the versions every patch is verified against.
        patches: in order.
        local_only: distributions that are verified where they are installed but not downloaded for it.
        digest: hash of ``series.yaml`` and every patch file.
    """

    root: Path
    upstreams: Mapping[str, tuple[str, ...]]
    patches: tuple[Patch, ...]
    local_only: frozenset[str]
    digest: str

    def patch(self, patch_id: str) -> Patch:
        """Return one patch.

        Raises:
            PatchError: the series has none of that id.
        """
        for patch in self.patches:
            if patch.id == patch_id:
                return patch
        raise PatchError(
            "no such patch",
            where=str(self.root / SERIES_FILE),
            found=patch_id,
            expected=", ".join(patch.id for patch in self.patches),
            fix="verl-musa patches list",
        )

    def file(self, patch: Patch) -> Path:
        """Return the file that declares ``patch``."""
        return patch_file(self.root, patch.id)


def load_series(root: Path | None = None) -> Series:
    """Load the series at ``root`` (default: the one that belongs to this package).

    Raises:
        PatchError: a file of it is missing, malformed, not listed, or for an upstream that is not declared.
    """
    folder = patches_root() if root is None else root
    path = folder / SERIES_FILE
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        raise PatchError("the patch series cannot be read", where=str(path), found=str(error)) from error
    upstreams, order, local_only = _checked(content, path)
    patches = tuple(load_patch(folder, patch_id) for patch_id in order)
    for patch in patches:
        _check_patch(patch, upstreams, patch_file(folder, patch.id))
    _check_listed(folder, path, patches)
    whole = hashlib.sha256(text.encode())
    for patch in patches:
        whole.update(patch_file(folder, patch.id).read_bytes())
    return Series(folder, upstreams, patches, local_only, whole.hexdigest()[:DIGEST_LENGTH])


def activation_env(
    *,
    simulated: bool,
    allow_drift: Sequence[str] = (),
    off: Sequence[str] = (),
    root: Path | None = None,
) -> dict[str, str]:
    """Return the environment variable that activates the series in every process that inherits it.

    Args:
        simulated: the run's device is the simulated one; patches for real devices only are then left out, and
            the other way round.
        allow_drift: patches that may be applied although their target has changed. Recorded by each worker.
        off: patches to leave out (tests, and the search for a culprit).
        root: another folder of patches than this package's own. It must be at that path on every host.

    Raises:
        PatchError: the series is malformed, or an id of ``allow_drift`` or ``off`` is not in it.
    """
    series = load_series(root)
    for patch_id in (*allow_drift, *off):
        series.patch(patch_id)
    device: Literal["simulated", "musa"] = "simulated" if simulated else "musa"
    chosen = [
        patch for patch in series.patches if patch.id not in off and {"any", device} & set(patch.devices)
    ]
    plan = {
        "series": series.digest,
        "root": None if root is None else str(root.resolve()),
        "device": device,
        "upstreams": {name: list(versions) for name, versions in series.upstreams.items()},
        "allow_drift": sorted(set(allow_drift)),
        "off": sorted(set(off)),
        "patches": [
            {"id": patch.id, "file": digest(series.file(patch).read_bytes()), "modules": list(patch.modules)}
            for patch in chosen
        ],
    }
    modules = dict.fromkeys(name for patch in chosen for name in patch.modules)
    return {PLAN_ENV: f"{PLAN_MARK};{','.join(modules)};{json.dumps(plan, separators=(',', ':'))}"}


def _checked(content: Any, path: Path) -> tuple[dict[str, tuple[str, ...]], list[str], frozenset[str]]:
    def fail(message: str, found: object, expected: str) -> PatchError:
        return PatchError(message, where=str(path), found=repr(found), expected=expected)

    if not isinstance(content, dict) or content.get("schema") != SERIES_SCHEMA:
        raise fail("not a patch series", content and type(content).__name__, f"schema: {SERIES_SCHEMA}")
    if unknown := content.keys() - {"schema", "upstreams", "order", "local_only"}:
        raise fail("unknown keys", sorted(unknown), "schema, upstreams, local_only, order")
    upstreams = content.get("upstreams")
    if not isinstance(upstreams, dict) or not upstreams:
        raise fail("no upstreams", upstreams, "a mapping from distribution to its supported versions")
    for name, versions in upstreams.items():
        if not isinstance(versions, list) or not all(isinstance(version, str) for version in versions):
            raise fail(f"upstreams.{name} is not a list of versions", versions, "strings, quoted")
    order = content.get("order")
    if not isinstance(order, list) or not all(isinstance(patch_id, str) for patch_id in order):
        raise fail("no order", order, "a list of patch ids")
    if double := sorted({patch_id for patch_id in order if order.count(patch_id) > 1}):
        raise fail("a patch is listed twice", double, "each id once")
    local_only = content.get("local_only", [])
    if not isinstance(local_only, list) or not set(local_only) <= upstreams.keys():
        raise fail("local_only names something else than upstreams", local_only, ", ".join(upstreams))
    return {name: tuple(versions) for name, versions in upstreams.items()}, order, frozenset(local_only)


def _check_patch(patch: Patch, upstreams: Mapping[str, tuple[str, ...]], path: Path) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if patch.distribution not in upstreams:
        raise PatchError(
            "a patch for an upstream that series.yaml does not declare",
            where=str(path),
            found=patch.distribution,
            expected=", ".join(upstreams),
        )
    for specifier in (patch.versions, patch.remove_when.version or ""):
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier as error:
            raise PatchError("not a version range", where=str(path), found=str(error)) from error
    if not patch.changes:
        raise PatchError("a patch that changes nothing", where=str(path), expected="a decorated change")


def _check_listed(folder: Path, path: Path, patches: Sequence[Patch]) -> None:
    on_disk = set(folder.glob("*/*.py"))
    if stray := sorted(on_disk - {patch_file(folder, patch.id) for patch in patches}):
        raise PatchError(
            "patch files that the series does not list",
            where=str(path),
            found=", ".join(str(file.relative_to(folder)) for file in stray),
            fix="add their ids to `order`, or delete them",
        )
