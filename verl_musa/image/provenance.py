"""``provenance.json``: what an image or an environment is made of, and the file listing that it is held against."""

from __future__ import annotations

import gzip
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.errors import ImageError
from verl_musa.fileio import write_atomic, write_json
from verl_musa.image.debian import packages
from verl_musa.image.environment import Environment, read_environment
from verl_musa.image.tree import SHARE, HashCache, Listing, content_hash, list_filesystem
from verl_musa.patching import load_series

SCHEMA = 1
PROVENANCE = "provenance.json"
FILES = "files.json.gz"
BUILD = "build.json"
SBOM = "sbom.cdx.json"


@dataclass(frozen=True)
class Provenance:
    """What is known about an image or an environment.

    Attributes:
        facts: the content of ``provenance.json``.
        files: the listing behind its hash: of the whole file system of an image, of the packages of an environment.
    """

    facts: Mapping[str, Any]
    files: Listing

    @property
    def kind(self) -> str:
        """``image`` or ``environment``."""
        return str(self.facts["kind"])

    @property
    def content(self) -> str:
        """The one hash: of the whole file system of an image, of all packages' files of an environment."""
        content: Mapping[str, str] = self.facts["content"]
        return content.get("filesystem") or content["packages"]

    @property
    def packages(self) -> Mapping[str, Mapping[str, str]]:
        """Every distribution, with version, place and hash."""
        found: Mapping[str, Mapping[str, str]] = self.facts["packages"]
        return found


def share_folder() -> Path:
    """Where this environment keeps what is known about it."""
    return Path(sys.prefix) / "share" / "verl-musa"


def series_facts() -> dict[str, Any]:
    """The patch series: its digest, and every fingerprint that a patch accepts."""
    series = load_series()
    return {
        "digest": series.digest,
        "patches": {
            patch.id: {target: dict(versions) for target, versions in patch.fingerprints.items()}
            for patch in series.patches
        },
    }


def package_facts(environment: Environment) -> dict[str, dict[str, str]]:
    """The distributions as plain data."""
    return {
        key: {"version": found.version, "place": found.place, "sha256": found.sha256}
        for key, found in environment.distributions.items()
    }


def environment_provenance(
    environment: Environment | None = None, build: Mapping[str, Any] | None = None
) -> Provenance:
    """What this environment is made of; ``build`` adds what only the builder of an image knows."""
    found = environment or read_environment()
    facts = {
        "schema": SCHEMA,
        "kind": "environment",
        "python": platform.python_version(),
        "build": dict(build or {}),
        "series": series_facts(),
        "packages": package_facts(found),
        "content": {"packages": found.sha256},
    }
    return Provenance(facts, found.files)


def image_provenance(build: Mapping[str, Any], root: Path = Path("/")) -> Provenance:
    """What the image is made of, whose file system this process sees as its own."""
    hashes = HashCache(None)  # each file is read once for both
    environment = read_environment(hashes=hashes)
    listing = list_filesystem(root, hashes)
    facts = environment_provenance(environment, build).facts
    content = {"packages": environment.sha256, "filesystem": content_hash(listing)}
    debian = {package.name: package.version for package in packages(root)}
    return Provenance({**facts, "kind": "image", "debian": debian, "content": content}, listing)


def write_provenance(found: Provenance, folder: Path) -> None:
    """Write ``provenance.json`` and the listing.

    Raises:
        ImageError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / PROVENANCE, dict(found.facts))
        listing = json.dumps(found.files, sort_keys=True, ensure_ascii=True).encode()
        write_atomic(folder / FILES, gzip.compress(listing, mtime=0))
    except OSError as error:
        raise ImageError("the provenance cannot be written", where=str(folder), found=str(error)) from error


def read_provenance(folder: Path) -> Provenance | None:
    """What was recorded there; None where nothing was.

    Raises:
        ImageError: it cannot be read, is of another version, or does not fit its own listing.
    """
    try:
        facts = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        listing = json.loads(gzip.decompress((folder / FILES).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, gzip.BadGzipFile) as error:
        raise ImageError("the provenance cannot be read", where=str(folder), found=str(error)) from error
    return parse_provenance(facts, listing, str(folder))


def parse_provenance(facts: Any, listing: Any, where: str) -> Provenance:
    """Check what was read.

    Raises:
        ImageError: another version, or a listing that gives another hash than the one stated.
    """
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA or not isinstance(listing, dict):
        raise ImageError(
            "the provenance is of another version",
            where=where,
            found=f"schema {facts.get('schema')!r}" if isinstance(facts, dict) else "no JSON object",
            expected=f"schema {SCHEMA}",
            fix="build the image again, or use the verl-musa that built it",
        )
    found = Provenance(facts, listing)
    if content_hash(listing) != found.content:
        raise ImageError(
            "the listing does not give the recorded content hash",
            where=where,
            found=content_hash(listing),
            expected=found.content,
            fix="the files beside the provenance were changed: build the image again",
        )
    return found


def recorded() -> Provenance | None:
    """What was recorded for this environment; None where nothing was."""
    return read_provenance(share_folder())


def is_image() -> bool:
    """Whether this environment is that of an image."""
    return share_folder() == Path("/") / SHARE and (share_folder() / BUILD).is_file()


def read_build_facts() -> dict[str, Any]:
    """What the builder left in the image about its build; empty outside of an image."""
    file = share_folder() / BUILD
    if not file.is_file():
        return {}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
