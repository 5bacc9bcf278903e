"""The SBOM of an image, and the licences that it lists."""

from __future__ import annotations

import json
from typing import Any

from verl_musa.errors import ImageError
from verl_musa.image.provenance import SBOM, share_folder
from verl_musa.image.tree import SHARE

UNSTATED = "not stated"


def read_sbom(reference: str | None) -> dict[str, Any]:
    """The SBOM of an image, or of the image that this runs in.

    Raises:
        ImageError: it has none.
    """
    if reference is None:
        file = share_folder() / SBOM
        text = file.read_bytes() if file.is_file() else None
    else:
        from verl_musa.image.engine import find_engine

        text = find_engine().read(reference, f"/{SHARE}").get(SBOM)
    if text is None:
        raise ImageError(
            "no SBOM",
            where=reference or str(share_folder()),
            expected=f"{SBOM}, which the build of an image writes",
            fix="name an image that `nox -s build_image` made",
        )
    found: dict[str, Any] = json.loads(text)
    return found


def licence_rows(sbom: dict[str, Any]) -> list[tuple[str, ...]]:
    """(package, version, licence) of every component, sorted by name."""
    rows = [
        (str(one["name"]), str(one.get("version", "")), _licence(one.get("licenses", ())))
        for one in sbom.get("components", ())
    ]
    return sorted(rows, key=lambda row: row[0].lower())


def _licence(stated: Any) -> str:
    found = []
    for entry in stated:
        licence = entry.get("license", {})
        name = entry.get("expression") or licence.get("id") or licence.get("name", "")
        first = next(iter(str(name).strip().splitlines()), "").rpartition(" :: ")[
            2
        ]  # of a classifier the last part
        if first and first not in found:
            found.append(first[:80])
    return "; ".join(found) or UNSTATED
