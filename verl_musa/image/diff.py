"""What is different between two images, or environments: packages, patches, pins, files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.errors import ImageError
from verl_musa.image.inside import describe
from verl_musa.image.provenance import FILES, PROVENANCE, Provenance, read_provenance
from verl_musa.image.tree import differing

SHOWN = 40


@dataclass(frozen=True)
class Difference:
    """What differs.

    Attributes:
        packages: one sentence for each package.
        patches: one for each patch.
        facts: one for each other fact: base, Python, Debian's packages.
        files: one for each file.
    """

    packages: tuple[str, ...]
    patches: tuple[str, ...]
    facts: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.packages or self.patches or self.facts or self.files)

    def lines(self) -> list[str]:
        """The differences for people."""
        if self.same:
            return ["no difference"]
        found = []
        for title, entries in (
            ("packages", self.packages),
            ("patches", self.patches),
            ("other", self.facts),
            ("files", self.files),
        ):
            if entries:
                found.append(f"{title}: {len(entries)} differ")
                found += [f"  {entry}" for entry in entries[:SHOWN]]
                found += [f"  … and {len(entries) - SHOWN} more"] if len(entries) > SHOWN else []
        return found


def diff(before: Provenance, after: Provenance) -> Difference:
    """Compare two of a kind; of an image and an environment the packages and patches alone."""
    comparable = before.kind == after.kind and bool(before.files) and bool(after.files)
    files = (
        [describe(path, before.files, after.files) for path in differing(before.files, after.files)]
        if comparable
        else []
    )
    return Difference(
        tuple(_packages(before.packages, after.packages)),
        tuple(_patches(before.facts["series"], after.facts["series"])),
        tuple(_facts(before.facts, after.facts)),
        tuple(files),
    )


def _packages(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> list[str]:
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            found.append(f"{key}: {_version(old)} -> {_version(new)}")
        elif old["version"] != new["version"]:
            found.append(f"{key}: {old['version']} -> {new['version']}")
        elif old["sha256"] != new["sha256"]:
            found.append(f"{key} {old['version']}: other files under the same version")
    return found


def _version(entry: Mapping[str, str] | None) -> str:
    return "not there" if entry is None else entry["version"]


def _patches(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    old, new = before["patches"], after["patches"]
    found = [
        f"{patch}: {'added' if patch not in old else 'removed' if patch not in new else 'other fingerprints'}"
        for patch in sorted(old.keys() | new.keys())
        if old.get(patch) != new.get(patch)
    ]
    if not found and before["digest"] != after["digest"]:
        found.append(f"series {before['digest']} -> {after['digest']}: other text of a patch")
    return found


def _facts(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    found = (
        [f"python: {before['python']} -> {after['python']}"] if before["python"] != after["python"] else []
    )
    old, new = (facts["build"].get("base", {}).get("identity") for facts in (before, after))
    if old and new and old != new:
        found.append(f"base: {old} -> {new}")
    debian_old, debian_new = before.get("debian", {}), after.get("debian", {})
    names = sorted(debian_old.keys() | debian_new.keys()) if debian_old and debian_new else ()
    changed = [name for name in names if debian_old.get(name) != debian_new.get(name)]
    found += [
        f"debian {name}: {debian_old.get(name, 'not there')} -> {debian_new.get(name, 'not there')}"
        for name in changed
    ]
    return found


def from_path(path: Path) -> Provenance:
    """The provenance that a folder, a run directory or a file of that name holds.

    Raises:
        ImageError: there is none.
    """
    folder = path if path.is_dir() else path.parent
    found = read_provenance(folder) if (folder / FILES).is_file() else _without_files(folder)
    if found is None:
        raise ImageError(
            "no provenance there", where=str(path), expected=f"{PROVENANCE}", fix="verl-musa image record"
        )
    return found


def _without_files(folder: Path) -> Provenance | None:
    """A run directory keeps the facts alone."""
    file = folder / PROVENANCE
    if not file.is_file():
        return None
    return Provenance(json.loads(file.read_text(encoding="utf-8")), {})
