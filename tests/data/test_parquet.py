from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_musa.checks import Finding, Status
from verl_musa.data import parquet
from verl_musa.data.subject import Subject

Look = Callable[..., Subject]

ROW: dict[str, Any] = {
    "data_source": "sums",
    "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
}


def write(file: Path, *rows: dict[str, Any]) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), file)


def holds(finding: Finding, status: Status, evidence: str) -> None:
    assert (finding.status, evidence in finding.evidence) == (status, True), finding
    if status is Status.FAIL:
        assert finding.fix
        assert finding.where


def test_all_right(look: Look) -> None:
    subject = look()
    findings = {check.name: check.function(subject) for check in parquet.CHECKS}
    assert {name: finding.status for name, finding in findings.items()} == dict.fromkeys(findings, Status.OK)
    assert findings["data.train.files"].evidence == "16 rows in 1 file(s)"
    assert findings["data.val.rows"].evidence == "4 rows looked at"


def test_missing_file(folder: Path, look: Look) -> None:
    (folder / "val.parquet").unlink()
    subject = look()
    finding = parquet.check_files("val", subject)
    holds(finding, Status.FAIL, f"no file {folder}/val.parquet")
    assert finding.where == f"{folder}/recipe.yaml:8"
    holds(parquet.check_columns("val", subject), Status.UNKNOWN, "data.val.files")
    holds(parquet.check_rows("val", subject), Status.UNKNOWN, "data.val.files")
    holds(parquet.check_files("train", subject), Status.OK, "16 rows")


@pytest.mark.parametrize("content", [b"", b"PAR1 not really"])
def test_not_parquet(content: bytes, folder: Path, look: Look) -> None:
    (folder / "train.parquet").write_bytes(content)
    subject = look()
    holds(parquet.check_files("train", subject), Status.FAIL, "cannot be read")
    holds(parquet.check_columns("train", subject), Status.UNKNOWN, "data.train.files")
    holds(parquet.check_rows("train", subject), Status.UNKNOWN, "data.train.files")
    assert parquet.count_rows(subject.files("train")) is None


def test_truncated(folder: Path, look: Look) -> None:
    file = folder / "train.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    holds(parquet.check_files("train", look()), Status.FAIL, "cannot be read")


def test_empty(folder: Path, look: Look) -> None:
    table = pq.read_table(folder / "train.parquet").slice(0, 0)
    pq.write_table(table, folder / "train.parquet")
    holds(parquet.check_files("train", look()), Status.FAIL, "has no rows")
    holds(parquet.check_rows("train", look()), Status.UNKNOWN, "")


def test_json_is_not_looked_into(folder: Path, look: Look) -> None:
    (folder / "train.jsonl").touch()
    subject = look(f"data.train_files={folder}/train.jsonl")
    holds(parquet.check_files("train", subject), Status.UNKNOWN, "only .parquet")
    holds(parquet.check_files("train", look("data.train_files=[]")), Status.FAIL, "no files")


@pytest.mark.parametrize(
    ("drop", "change", "evidence"),
    [
        ("prompt", {}, "no column 'prompt'"),
        ("data_source", {}, "no column 'data_source'"),
        ("reward_model", {}, "no column 'reward_model'"),
        ("", {"prompt": "1+1="}, "column 'prompt' is string"),
        ("", {"prompt": [{"role": "user", "text": "x"}]}, "column 'prompt' is list"),
        ("", {"data_source": 3}, "column 'data_source' is int64"),
        ("", {"reward_model": {"style": "rule"}}, "column 'reward_model' is struct"),
    ],
)
def test_columns(drop: str, change: dict[str, Any], evidence: str, folder: Path, look: Look) -> None:
    row = {key: value for key, value in {**ROW, **change}.items() if key != drop}
    write(folder / "train.parquet", row)
    holds(parquet.check_columns("train", look()), Status.FAIL, evidence)


def test_dictionary_encoded_text_is_text(folder: Path, look: Look) -> None:
    table = pa.Table.from_pylist([ROW] * 4)
    column = table["data_source"].combine_chunks().dictionary_encode()
    pq.write_table(
        table.set_column(table.schema.get_field_index("data_source"), "data_source", column),
        folder / "train.parquet",
    )
    holds(parquet.check_columns("train", look()), Status.OK, "data_source")


def test_other_prompt_key(folder: Path, look: Look) -> None:
    write(
        folder / "train.parquet",
        {**{k: v for k, v in ROW.items() if k != "prompt"}, "question": ROW["prompt"]},
    )
    subject = look("data.prompt_key=question")
    holds(parquet.check_columns("train", subject), Status.OK, "question")
    holds(parquet.check_rows("train", subject), Status.OK, "1 rows")


def test_files_must_be_alike(folder: Path, look: Look) -> None:
    write(folder / "more.parquet", {**ROW, "extra": 1})
    subject = look(f"data.train_files=[{folder}/train.parquet,{folder}/more.parquet]")
    holds(parquet.check_files("train", subject), Status.OK, "17 rows in 2 file(s)")
    holds(parquet.check_columns("train", subject), Status.FAIL, "differ from the first file's")


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        ({"prompt": []}, "not a list of messages"),
        ({"prompt": None}, "not a list of messages"),
        ({"prompt": [{"role": "human", "content": "x"}]}, "role 'human'"),
        ({"prompt": [{"role": "user", "content": ""}]}, "prompt[0] has no content"),
        (
            {"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            "is from 'assistant'",
        ),
        ({"data_source": ""}, "'data_source' is empty"),
        ({"reward_model": {"style": "rule", "ground_truth": None}}, "ground_truth is empty"),
        ({"reward_model": None}, "ground_truth is empty"),
    ],
)
def test_rows(change: dict[str, Any], evidence: str, folder: Path, look: Look) -> None:
    write(folder / "train.parquet", ROW, {**ROW, **change})
    finding = parquet.check_rows("train", look())
    holds(finding, Status.FAIL, f"row 1: {evidence}" if evidence.startswith("'data") else evidence)
    assert finding.where == str(folder / "train.parquet")


def test_sample_is_bounded(folder: Path) -> None:
    write(folder / "big.parquet", *([ROW] * 700))
    rows = parquet.sample_rows(folder / "big.parquet", 300)
    assert rows is not None
    assert len(rows) == 300
