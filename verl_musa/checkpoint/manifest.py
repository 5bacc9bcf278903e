"""``conversion.json``: what a converted checkpoint was made from, how, and a checksum of every tensor."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from verl_musa import __version__
from verl_musa.checkpoint.index import COMMON, METADATA
from verl_musa.checkpoint.mapping import MAPPING_VERSION
from verl_musa.checkpoint.safetensors_folder import INDEX, WeightFolder
from verl_musa.checkpoint.spec import CONFIG
from verl_musa.errors import CheckpointError

MANIFEST = "conversion.json"
SCHEMA = 1
SHOWN = 3
MEGATRON = ">=0.16,<0.19"
"""Versions of Megatron-Core whose loader this format is for: 0.19 writes and expects no common.pt."""

HASH = "xxh3_128"
"""Guards against damage and mix-ups, not against malice; ten times as fast as SHA-256, so no check is worth skipping."""


def describe_source(weights: WeightFolder) -> dict[str, Any]:
    """What identifies the source: its files' sizes and headers, its config and its index."""
    return {
        "config_sha256": _sha256(weights.path / CONFIG),
        "index_sha256": _sha256(weights.path / INDEX),
        "files": [
            {"name": file.name, "bytes": file.size, "header_sha256": file.header_sha256}
            for file in weights.files
        ],
    }


def describe_output(folder: Path) -> dict[str, Any]:
    """What identifies the checkpoint's files: their sizes, and the hash of the index that says what lies where."""
    names = sorted(path.name for path in (*folder.glob("*.distcp"), folder / COMMON))
    return {
        "index_sha256": _sha256(folder / METADATA),
        "files": [{"name": name, "bytes": (folder / name).stat().st_size} for name in names],
    }


def other_source(found: dict[str, Any], weights: WeightFolder) -> str:
    """What about a source differs from the one that a manifest names; empty where nothing does."""
    now, then = describe_source(weights), found["source"]
    names = {"config_sha256": CONFIG, "index_sha256": INDEX}
    changed = [name for key, name in names.items() if then.get(key) != now[key]]
    files = {file["name"]: file for file in then.get("files", ())}
    files_now = {file["name"]: file for file in now["files"]}
    changed += sorted(name for name in {*files, *files_now} if files.get(name) != files_now.get(name))
    return ", ".join(changed[:SHOWN]) + (f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else "")


def other_output(found: dict[str, Any], folder: Path) -> str:
    """What about a checkpoint's files differs from what its manifest says; empty where nothing does."""
    then = found.get("output")
    if then is None:  # made before the manifest said so
        return ""
    if _sha256(folder / METADATA) != then["index_sha256"]:
        return f"{METADATA} is another one"
    for file in then["files"]:
        path = folder / file["name"]
        size = path.stat().st_size if path.is_file() else None
        if size != file["bytes"]:
            seen = "missing" if size is None else f"{size:,} bytes"
            return f"{file['name']} is {seen}, was {file['bytes']:,} bytes"
    return ""


def digest(folder: Path) -> str | None:
    """A hash of what fixes a converted checkpoint's content: source, options and checksums, whoever made it and where.

    None where the folder has no manifest.

    Raises:
        CheckpointError: see :func:`read`.
    """
    found = read(folder)
    if found is None:
        return None
    kept = {
        key: found[key] for key in ("mapping_version", "direction", "source", "target", "hash", "tensors")
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def checksum(data: memoryview) -> str:
    """The hash of a tensor's bytes."""
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(data))


def make(
    direction: str,
    source: dict[str, Any],
    target: dict[str, Any],
    checksums: dict[str, str],
    output: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Put a manifest together.

    Args:
        direction: ``to-mcore`` or ``to-hf``.
        source: from :func:`describe_source`.
        target: what was asked for.
        checksums: hash of the source's bytes by Hugging Face name.
        output: from :func:`describe_output`.
    """
    return {
        "schema": SCHEMA,
        "made_by": f"verl-musa {__version__}",
        "mapping_version": MAPPING_VERSION,
        "direction": direction,
        "megatron_core": MEGATRON,
        "source": source,
        "target": target,
        **({} if output is None else {"output": output}),
        "hash": HASH,
        "tensors": dict(sorted(checksums.items())),
    }


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest of a converted checkpoint; None where it has none.

    Raises:
        CheckpointError: it cannot be read, or is of another version.
    """
    file = folder / MANIFEST
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            "the manifest cannot be read", where=str(file), found=str(error), fix="copy the checkpoint again"
        ) from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise CheckpointError(
            "the manifest is of another version",
            where=str(file),
            found=f"schema {found.get('schema')!r}" if isinstance(found, dict) else "no JSON object",
            expected=f"schema {SCHEMA}",
            fix="convert the weights again",
        )
    return found


def _sha256(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
