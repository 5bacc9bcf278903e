"""The SBOM of an image, and the licences that it lists."""

from __future__ import annotations

import base64
import json
from typing import Any

from verl_musa.errors import ImageError
from verl_musa.image.debian import DECLARED
from verl_musa.image.provenance import SBOM, share_folder
from verl_musa.image.tree import SHARE

UNSTATED = "not stated"
ONLY_TEXT = "its text is in the SBOM"


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
    """The licences of a component, each once: ids and names, else what its metadata says in words, else that it has a text."""
    found = [_name(entry) for entry in stated if "text" not in entry.get("license", {})]
    texts = [entry["license"] for entry in stated if "text" in entry.get("license", {})]
    found = found or [_first_line(text) for text in texts if str(text.get("name", "")).startswith(DECLARED)]
    return "; ".join(dict.fromkeys(filter(None, found))) or (ONLY_TEXT if texts else UNSTATED)


def _name(entry: dict[str, Any]) -> str:
    licence = entry.get("license", {})
    name = entry.get("expression") or licence.get("id") or licence.get("name", "")
    return _short(str(name)).rpartition(" :: ")[2]  # of a classifier the last part


def _first_line(licence: dict[str, Any]) -> str:
    text = licence["text"]
    content = str(text.get("content", ""))
    if text.get("encoding") == "base64":
        content = base64.b64decode(content).decode("utf-8", "replace")
    return _short(content)


def _short(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:80]
