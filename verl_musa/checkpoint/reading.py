"""Bytes of safetensors entries, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from verl_musa.checkpoint.safetensors_folder import Entry

BLOCK = 16 << 20
"""Bytes read at once."""


def blocks(folder: Path, entry: Entry) -> Iterator[bytes]:
    """Yield a tensor's bytes, block by block."""
    with (folder / entry.file).open("rb") as stream:
        stream.seek(entry.start)
        left = entry.nbytes
        while left:
            block = stream.read(min(BLOCK, left))
            if not block:
                raise OSError(f"{entry.file} ends within {entry.name}")
            left -= len(block)
            yield block


def same_bytes(folder: Path, one: Entry, other: Entry) -> bool:
    """Whether two tensors of one folder have the same shape, type and content."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return all(a == b for a, b in zip(blocks(folder, one), blocks(folder, other), strict=True))
