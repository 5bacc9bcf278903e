"""Debian's packages of a file system, as the provenance and the SBOM have them.

The tool that lists Python packages knows nothing of these. Their licences are what ``/usr/share/doc/PACKAGE/copyright`` states: the
``License`` fields where it is machine-readable (DEP-5), else the texts in ``/usr/share/common-licenses`` that it refers to, else the
whole file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from verl_musa.errors import ImageError
from verl_musa.fileio import write_json

DECLARED = "declared license of"
"""How an SBOM calls the text of a licence that has no SPDX id: cyclonedx-py for Python packages, and we for Debian's."""

PURL = "pkg:deb/debian/"
_FORMAT = re.compile(r"^Format:", re.MULTILINE)
_LICENSE = re.compile(r"^License:[ \t]*(\S.*)$", re.MULTILINE)
_COMMON = re.compile(r"common-licenses/([A-Za-z0-9][A-Za-z0-9.+-]*[A-Za-z0-9+])")


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    version: str
    architecture: str


def packages(root: Path = Path("/")) -> list[Package]:
    """The installed packages, sorted by name; empty where the base is of another kind."""
    status = root / "var/lib/dpkg/status"
    if not status.is_file():
        return []
    found = []
    for block in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            found.append(Package(fields["Package"], fields["Version"], fields["Architecture"]))
    return sorted(found, key=lambda one: (one.name, one.architecture))


def licences(name: str, root: Path = Path("/")) -> list[dict[str, Any]]:
    """The licences of a package as entries of CycloneDX; empty where it has no statement."""
    file = root / "usr/share/doc" / name / "copyright"
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    stated = (_LICENSE if _FORMAT.search(text) else _COMMON).findall(text)
    names = sorted({" ".join(one.split()) for one in stated})
    if names:
        return [{"license": {"name": one}} for one in names]
    content = base64.b64encode(text.encode()).decode()
    whole = {"contentType": "text/plain", "encoding": "base64", "content": content}
    return [{"license": {"name": f"{DECLARED} {name}", "text": whole}}]


def components(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Debian's packages as components of CycloneDX."""
    return [_component(package, licences(package.name, root)) for package in packages(root)]


def _component(package: Package, stated: list[dict[str, Any]]) -> dict[str, Any]:
    # https://github.com/package-url/purl-spec: the "+" and ":" of a version are escaped as in any URL.
    purl = f"{PURL}{quote(package.name, safe='.-')}@{quote(package.version, safe='.-')}?arch={package.architecture}"
    made = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
    }
    return {**made, "licenses": stated} if stated else made


def add_to_sbom(file: Path, root: Path = Path("/")) -> int:
    """Put Debian's packages into an SBOM that has the Python packages, in the place of any that are in it; return how many.

    Raises:
        ImageError: the file is no SBOM in CycloneDX.
    """
    try:
        sbom: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        others = [one for one in sbom["components"] if not _of_debian(one)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImageError(
            "the SBOM cannot be read",
            where=str(file),
            found=f"{type(error).__name__}: {error}",
            expected="CycloneDX as JSON with `components`, which images/common/sbom.sh writes",
            fix="build the image again",
        ) from error
    added = components(root)
    write_json(file, {**sbom, "components": [*others, *added]})
    return len(added)


def _of_debian(component: Mapping[str, Any]) -> bool:
    return str(component.get("purl", "")).startswith(PURL)
