"""A folder of safetensors files, as Hugging Face lays it out, read by its headers alone.

The headers are read here and not by the safetensors library because a conversion needs each tensor's place in the
file: it maps files into memory and hands their bytes on. The format: 8 bytes little-endian length, that many bytes
of JSON, then the data (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100 * 2**20
"""The limit of the format itself."""

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of one number, by the format's names of the types that weights have."""

COPY_AGAIN = "copy the file again; compare its size with the source's"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor.

    Attributes:
        name: its name.
        file: the file's name.
        dtype: as the header names it.
        shape: its shape.
        start: offset of its first byte in the file.
        nbytes: its size.
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class WeightFile:
    """One file: name, size in bytes, and the SHA-256 of its header, which names every tensor, type and shape."""

    name: str
    size: int
    header_sha256: str


@dataclass(frozen=True)
class WeightFolder:
    """All weights of a model folder.

    Attributes:
        path: the folder.
        files: its weight files, in the order of their names.
        entries: every tensor by name, in the order in which they lie on disk.
    """

    path: Path
    files: tuple[WeightFile, ...]
    entries: dict[str, Entry]


def open_weights(folder: Path) -> WeightFolder:
    """Read the index and every file's header.

    Raises:
        CheckpointError: no safetensors files, a file missing, truncated or not what the index says.
    """
    names, listed = _file_names(folder)
    files: list[WeightFile] = []
    entries: dict[str, Entry] = {}
    for name in names:
        weight_file, found = _read_file(folder / name)
        files.append(weight_file)
        for entry in found:
            if entry.name in entries:
                raise CheckpointError(
                    f"{entry.name} lies in two files",
                    where=str(folder),
                    found=f"{entries[entry.name].file} and {name}",
                    fix="remove the file that does not belong to this model",
                )
            entries[entry.name] = entry
    for tensor, name in (listed or {}).items():
        if tensor not in entries or entries[tensor].file != name:
            raise CheckpointError(
                f"{name} lacks a tensor that the index puts there",
                where=str(folder / INDEX),
                found=f"{tensor} is {'in ' + entries[tensor].file if tensor in entries else 'in no file'}",
                fix="copy the weights and their index again, from one download",
            )
    return WeightFolder(folder, tuple(files), entries)


def _file_names(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    """The weight files, and the index's map from tensor to file where there is an index."""
    index = folder / INDEX
    if index.is_file():
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            listed = {str(tensor): str(name) for tensor, name in listed.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                "the index of the weights cannot be read",
                where=str(index),
                found=f"{type(error).__name__}: {error}",
                fix="copy the file again",
            ) from error
        return sorted(set(listed.values())), listed
    if (folder / SINGLE).is_file():
        return [SINGLE], None
    loose = sorted(path.name for path in folder.glob("*.safetensors"))
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    raise CheckpointError(
        "the folder holds no safetensors weights in Hugging Face layout",
        where=str(folder),
        found=", ".join((loose or pickled)[:3]) or "no weight file at all",
        expected=f"{SINGLE}, or {INDEX} with the files that it names",
        fix="name a folder in Hugging Face layout; .bin weights must be saved as safetensors first",
    )


def _read_file(file: Path) -> tuple[WeightFile, list[Entry]]:
    """Read one header.

    Raises:
        CheckpointError: the file is missing, truncated, or no safetensors file.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER + 1  # noqa: PLR2004
            raw = stream.read(length) if length <= MAX_HEADER else b""
    except OSError as error:
        raise CheckpointError(
            "a weight file cannot be read",
            where=str(file),
            found=error.strerror or str(error),
            fix="copy the missing file, or make it readable",
        ) from error
    try:
        if not raw:
            raise ValueError("no header at its start")  # noqa: TRY301  (one message for every broken header)
        entries = _entries(file.name, json.loads(raw), 8 + length)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "not a safetensors file, or its header is damaged",
            where=str(file),
            found=f"{size:,} bytes; {error}",
            fix=COPY_AGAIN,
        ) from error
    expected = max((entry.start + entry.nbytes for entry in entries), default=8 + length)
    if size != expected:
        raise CheckpointError(
            "the weight file is truncated"
            if size < expected
            else "the weight file is longer than its header says",
            where=str(file),
            found=f"{size:,} bytes",
            expected=f"{expected:,} bytes, by its own header",
            fix=COPY_AGAIN,
        )
    return WeightFile(file.name, size, hashlib.sha256(raw).hexdigest()), entries


def _entries(file: str, header: dict[str, Any], base: int) -> list[Entry]:
    """The tensors that a header names, in file order.

    Raises:
        ValueError: a tensor's size does not fit its shape and type.
        KeyError, TypeError: the header is not what the format asks for.
    """
    found = []
    for name, value in header.items():
        if name == "__metadata__":
            continue
        first, last = value["data_offsets"]
        shape, dtype = tuple(int(size) for size in value["shape"]), str(value["dtype"])
        item = ITEM_BYTES.get(dtype)
        if item is not None and math.prod(shape) * item != last - first:
            raise ValueError(f"{name} has {last - first} bytes, not those of {dtype} {list(shape)}")
        found.append(Entry(name, file, dtype, shape, base + first, last - first))
    return sorted(found, key=lambda entry: entry.start)
