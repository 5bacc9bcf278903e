"""Rows of parquet, JSON lines, JSON and CSV files, a batch at a time, each with the place where it stands.

A place is ``FILE:N``: the line, from 1, of a text file; the row, from 0, of a parquet file.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.errors import DataError

BATCH_ROWS = 8192
"""Rows that are in memory at once."""

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_CHUNK = 1 << 20
_MAX_FIELD = 1 << 28
_MAX_OBJECT = 1 << 26
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Batch:
    """Some rows of a file, in order.

    Attributes:
        file: the file.
        places: number of each row, as in :func:`place`.
        rows: the rows.
        share: how much of the file has been read, up to 1.
    """

    file: Path
    places: list[int]
    rows: list[dict[str, Any]]
    share: float


def place(file: Path, number: int) -> str:
    """``FILE:N`` for messages."""
    return f"{file}:{number}"


def read_batches(file: Path, size: int = BATCH_ROWS) -> Iterator[Batch]:
    """The rows of ``file``, by its ending.

    Raises:
        DataError: it is missing, of another kind, or holds something that is no row, with its place.
    """
    if not file.is_file():
        raise DataError("no such file", where=str(file), fix="correct the path")
    if file.suffix == ".parquet":
        yield from _parquet(file, size)
        return
    readers: dict[str, Callable[[Path], Iterator[_Row]]] = {".jsonl": _lines, ".json": _json, ".csv": _csv}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise DataError(
            "cannot read this kind of file",
            where=str(file),
            found=f"the ending {file.suffix or '(none)'}",
            expected=", ".join(SUFFIXES),
            fix="convert it",
        )
    total = max(1, file.stat().st_size)
    places: list[int] = []
    rows: list[dict[str, Any]] = []
    for number, row, done in reader(file):
        places.append(number)
        rows.append(row)
        if len(rows) == size:
            yield Batch(file, places, rows, min(1.0, done / total))
            places, rows = [], []
    if rows:
        yield Batch(file, places, rows, 1.0)


_Row = tuple[int, dict[str, Any], int]
"""Number of the row, the row, and bytes of the file that were read so far."""


def _parquet(file: Path, size: int) -> Iterator[Batch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 0
    try:
        with pq.ParquetFile(file) as source:
            total = max(1, source.metadata.num_rows)
            for batch in source.iter_batches(batch_size=size):
                rows = batch.to_pylist()
                yield Batch(file, list(range(first, first + len(rows))), rows, (first + len(rows)) / total)
                first += len(rows)
    except UnicodeDecodeError as error:
        raise DataError(
            "text that is not UTF-8",
            where=place(file, first),
            found=f"{error}, in this row or one of the next {size - 1}",
            fix="run `verl-musa data check` on the file, which names the rows",
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            "cannot be read as parquet", where=str(file), found=" ".join(str(error).split())[:300]
        ) from error


def _lines(file: Path) -> Iterator[_Row]:
    done = 0
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            done += len(line)
            text = _decoded(line.removeprefix(_BOM) if number == 1 else line, file, number)
            if text.strip():
                yield number, _object(text, file, number), done


def _decoded(line: bytes, file: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            "text that is not UTF-8",
            where=place(file, number),
            found=f"byte 0x{line[error.start]:02x} at {error.start}",
            fix="write the file again as UTF-8 (iconv -f GB18030 -t UTF-8, if that is what it is)",
        ) from error


def _object(text: str, file: Path, number: int) -> dict[str, Any]:
    try:
        return _as_row(json.loads(text), file, number, escaped="\\u" in text)
    except json.JSONDecodeError as error:
        raise DataError(
            "not JSON",
            where=place(file, number),
            found=f"{error.msg} at character {error.pos}",
            fix="correct the line",
        ) from error


def _as_row(value: Any, file: Path, number: int, *, escaped: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            "not a row",
            where=place(file, number),
            found=type(value).__name__,
            expected="an object: column -> value",
            fix="write one JSON object a row",
        )
    if escaped:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise DataError(
                "half of a surrogate pair",
                where=place(file, number),
                found=f"\\u{ord(error.object[error.start]):04x} alone",
                expected="text that UTF-8 can hold",
                fix="correct the escape, or drop the row",
            ) from error
    return value


def _json(file: Path) -> Iterator[_Row]:
    """A JSON array of objects, or JSON lines under another name, as ``datasets`` takes both."""
    with file.open("rb") as stream:
        head = stream.read(_CHUNK).removeprefix(_BOM).lstrip()
    if not head.startswith(b"["):
        yield from _lines(file)
        return
    yield from _array(file)


def _array(file: Path) -> Iterator[_Row]:
    decoder = json.JSONDecoder()
    text, number, opened = "", 0, False
    for part, done in _text_parts(file):
        text += part
        if not opened:
            text, opened = text.lstrip("\ufeff \t\r\n").removeprefix("["), True
        at = 0
        while True:
            start = _skip(text, at)
            if start == len(text):
                break
            if text[start] == "]":
                return
            number += 1
            try:
                value, at = decoder.raw_decode(text, start)
            except json.JSONDecodeError:
                number -= 1
                break  # cut by the end of the part, or broken: the last part tells
            yield number, _as_row(value, file, number, escaped=True), done
        text = text[at:]
        if len(text) > _MAX_OBJECT:
            break
    raise DataError(
        "not JSON",
        where=str(file),
        found=f"no whole object after row {number}, and no ']' at the end",
        expected="an array of objects",
        fix="write the file again; rows are counted from 1 here",
    )


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _text_parts(file: Path) -> Iterator[tuple[str, int]]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    size, done = _CHUNK, 0
    with file.open("rb") as stream:
        while part := stream.read(size):
            try:
                yield decoder.decode(part), done + len(part)
            except UnicodeDecodeError as error:
                raise DataError(
                    "text that is not UTF-8",
                    where=str(file),
                    found=f"byte 0x{part[min(error.start, len(part) - 1)]:02x} near byte {done + error.start}",
                    fix="write the file again as UTF-8",
                ) from error
            done += len(part)


def _csv(file: Path) -> Iterator[_Row]:
    csv.field_size_limit(_MAX_FIELD)
    done = 0

    def lines() -> Iterator[str]:
        nonlocal done
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                done += len(line)
                yield _decoded(line.removeprefix(_BOM) if number == 1 else line, file, number)

    reader = csv.DictReader(lines(), strict=True)
    number = 1
    try:
        for row in reader:
            number = reader.line_num
            if None in row or None in row.values():
                raise DataError(
                    "a row of another length than the header",
                    where=place(file, number),
                    expected=f"{len(reader.fieldnames or ())} fields",
                    fix="quote fields that hold commas or line ends",
                )
            yield number, dict(row), done
    except csv.Error as error:
        raise DataError(
            "not CSV", where=place(file, reader.line_num), found=str(error), fix="correct the line"
        ) from error
