from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_musa.data.prepare_reading import read_batches
from verl_musa.errors import DataError

ROWS = [{"question": f"{n} + {n}?", "answer": 2 * n, "注": "中文"} for n in range(25)]


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    else:
        lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json", "a.csv"])
def test_every_kind_gives_the_same_rows_in_batches(name: str, tmp_path: Path) -> None:
    batches = list(read_batches(write(tmp_path / name, ROWS), 10))
    rows = [row for batch in batches for row in batch.rows]
    assert [len(batch.rows) for batch in batches] == [10, 10, 5]
    expected = [{key: str(value) for key, value in row.items()} for row in ROWS] if name == "a.csv" else ROWS
    assert rows == expected
    assert batches[-1].share == 1
    first = {"a.parquet": 0, "a.jsonl": 1, "a.json": 1, "a.csv": 2}[name]
    assert [number for batch in batches for number in batch.places] == list(range(first, first + 25))


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": 2}\n')
    (batch,) = read_batches(file)
    assert (batch.rows, batch.places) == ([{"a": 1}, {"a": 2}], [1, 3])
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfa\n1\n")
    (batch,) = read_batches(tmp_path / "a.csv")
    assert batch.rows == [{"a": "1"}]


def test_json_lines_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n{"a": 2}\n')
    (batch,) = read_batches(tmp_path / "a.json")
    assert batch.rows == [{"a": 1}, {"a": 2}]


def test_a_large_json_array_is_read_in_parts(tmp_path: Path) -> None:
    rows = [{"n": n, "text": "四" * 1000} for n in range(2000)]  # 6 MB, more than one part
    found = [row for batch in read_batches(write(tmp_path / "a.json", rows), 500) for row in batch.rows]
    assert found == rows


def test_quoted_fields_may_hold_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('q,a\n"one\ntwo, three",3\nfour,4\n')
    (batch,) = read_batches(tmp_path / "a.csv")
    assert batch.rows == [{"q": "one\ntwo, three", "a": "3"}, {"q": "four", "a": "4"}]
    assert batch.places == [3, 4]


@pytest.mark.parametrize(
    ("name", "content", "where", "found"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "a.jsonl:2", "Expecting value"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', "a.jsonl:2", "list"),
        ("a.jsonl", b'{"a": "\xd6\xd0"}\n', "a.jsonl:1", "byte 0xd6 at 7"),
        ("a.jsonl", b'{"a": "x\\ud83d"}\n', "a.jsonl:1", "\\ud83d alone"),
        ("a.json", b'[{"a": 1}, {"a": ]', "a.json", "no whole object after row 1"),
        ("a.json", b'[{"a": 1}', "a.json", "no ']' at the end"),
        ("a.json", b'[{"a": 1}, 2]', "a.json:2", "int"),
        ("a.json", b'[{"a": "\xff"}]', "a.json", "byte 0xff"),
        ("a.csv", b"a,b\n1,2,3\n", "a.csv:2", ""),
        ("a.csv", b"a,b\n1\n", "a.csv:2", ""),
        ("a.csv", b'a,b\n"1,2\n', "a.csv:1", "unexpected end"),
        ("a.csv", b"a,b\n\xb0,2\n", "a.csv:2", "byte 0xb0"),
        ("a.parquet", b"PAR1 no", "a.parquet", ""),
        ("a.txt", b"1", "a.txt", "the ending .txt"),
    ],
)
def test_what_is_no_row_is_named_with_its_place(
    name: str, content: bytes, where: str, found: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_batches(tmp_path / name))
    assert caught.value.where == str(tmp_path / where)
    assert found in (caught.value.found or "")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(read_batches(tmp_path / "a.parquet"))


def test_parquet_bytes_that_are_no_text(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff"], pa.binary())
    text = pa.StringArray.from_buffers(2, *raw.buffers()[1:])
    pq.write_table(pa.table({"q": text}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="not UTF-8"):
        list(read_batches(tmp_path / "a.parquet"))
