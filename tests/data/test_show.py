from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_musa.data.check_lengths import Lengths
from verl_musa.data.show import show
from verl_musa.errors import DataError


class Tokenizer:
    """Counts words; the part of a tokenizer that is asked here."""

    def apply_chat_template(self, chats: list[list[dict[str, str]]], **_: Any) -> list[str]:
        if any("BAD" in chat[-1]["content"] for chat in chats):
            raise ValueError("no such word")
        return [f"<user> {chat[-1]['content']} <assistant>" for chat in chats]

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * len(text.split()) for text in texts]}


def write(file: Path, questions: list[str]) -> Path:
    rows = [
        {"data_source": "a" if index else "b", "prompt": [{"role": "user", "content": question}]}
        for index, question in enumerate(questions)
    ]
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


def test_columns_counts_lengths_and_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", ["one", *["one two"] * 97, "one two three four", "one " * 20])
    found = show(file, rows=2, lengths=Lengths(Tokenizer()))
    assert (found.rows, dict(found.sources)) == (100, {"b": 1, "a": 99})
    assert found.columns["data_source"] == "string"
    assert found.characters == [3, 7, 7, 18, 80]
    assert found.tokens == [3, 4, 4, 6, 22]
    assert [row["prompt"][0]["content"] for row in found.first] == ["one", "one two"]
    assert found.rendered == ["<user> one <assistant>", "<user> one two <assistant>"]
    assert found.as_json()["tokens"] == {"0": 3, "0.5": 4, "0.9": 4, "0.99": 6, "1": 22}
    assert json.dumps(found.as_json())


def test_without_a_tokenizer_and_with_rows_that_are_no_prompts(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "1+1?"}\n{"question": "2+2?"}\n')
    found = show(file)
    assert (found.rows, found.columns, found.characters, found.tokens, found.rendered) == (2, {}, [], [], [])
    assert found.first == [{"question": "1+1?"}, {"question": "2+2?"}]


def test_a_template_that_refuses_a_row_does_not_hide_the_others(tmp_path: Path) -> None:
    found = show(write(tmp_path / "a.parquet", ["BAD", "good"]), lengths=Lengths(Tokenizer()))
    assert found.rendered[0].startswith("(the chat template refuses it: ValueError")
    assert found.rendered[1] == "<user> good <assistant>"
    assert found.tokens == [3, 3, 3, 3, 3]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        show(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no such file"):
        show(tmp_path / "b.parquet")
