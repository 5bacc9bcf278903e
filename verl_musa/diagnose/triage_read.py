"""Files in blocks of whole lines, in bounded memory, whatever is in them."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from verl_musa.diagnose.triage_text import ESCAPES

BLOCK = 1 << 20
LONGEST_LINE = 2 << 20
"""A line above this is read as several, with the same number."""

LARGEST_UNPACKED = 64 << 30


GZIP = 16 + zlib.MAX_WBITS
PACKED = 1 << 16


class Readable(Protocol):
    """What :func:`open_log` returns."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; none at the end."""


class UnreadableError(Exception):
    """A file that cannot be read, or not to its end."""


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of a file; ``line`` is the number of the first, ``offset`` where they begin."""

    line: int
    data: bytes
    offset: int


class _Unpacked:
    """A gzip, of one part or several, of which what is whole before a break can be read."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._left = b""
        self._decoder = zlib.decompressobj(GZIP)

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end. EOFError or zlib.error: the rest is missing or broken."""
        while True:
            packed = self._left or self._raw.read(PACKED)
            if not packed and self._decoder.eof:
                return b""
            if not packed:
                raise EOFError("the file is cut off")
            if self._decoder.eof:
                self._decoder = zlib.decompressobj(GZIP)
            data = self._decoder.decompress(packed, size)
            self._left = self._decoder.unconsumed_tail or self._decoder.unused_data
            if data:
                return data


@contextmanager
def open_log(path: Path) -> Iterator[Readable]:
    """Open a plain file or a gzip for reading; never follows a link, never waits for a pipe.

    Raises:
        UnreadableError: it is something else, or cannot be opened.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise UnreadableError("not a plain file")
    with os.fdopen(number, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield _Unpacked(raw) if packed else raw


def blocks(stream: Readable) -> Iterator[Block]:
    """The blocks of a file, colours taken out.

    Raises:
        UnreadableError: it broke off; the blocks before that were given out.
    """
    rest, line, offset = b"", 1, 0
    while True:
        try:
            data = stream.read(BLOCK)
        except (OSError, EOFError, zlib.error) as error:
            if rest:
                yield _block(line, rest, offset)
            raise UnreadableError(f"broken after line {line}: {error}") from error
        if not data:
            break
        data = rest + data
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) < LONGEST_LINE:
            rest = data
            continue
        cut = cut or len(data)
        yield _block(line, data[:cut], offset)
        line += data.count(b"\n", 0, cut)
        offset += cut
        rest = data[cut:]
        if offset > LARGEST_UNPACKED:
            raise UnreadableError(f"not read beyond {LARGEST_UNPACKED >> 30} GiB")
    if rest:
        yield _block(line, rest, offset)


def _block(line: int, data: bytes, offset: int) -> Block:
    return Block(line, ESCAPES.sub(b"", data) if b"\x1b" in data else data, offset)
