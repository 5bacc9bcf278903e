"""What the check says about a type is what ``datasets`` does with it, as verl reads the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_musa.data.check_types import column_faults, group_faults, joined, type_faults

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
LARGE = pa.struct([("role", pa.large_string()), ("content", pa.large_string())])
CHAT = [[{"role": "user", "content": "1+1?"}], [{"role": "user", "content": "2+2?"}]]


def table(prompt: Any, **columns: Any) -> pa.Table:
    plain = {"data_source": ["a", "a"], "reward_model": [{"style": "rule", "ground_truth": "2"}] * 2}
    return pa.table({"prompt": prompt, **plain, **columns})


def write(file: Path, content: pa.Table) -> Path:
    pq.write_table(content, file)
    return file


def said(file: Path) -> list[tuple[bool, str]]:
    schema = pq.read_schema(file)
    faults = [*column_faults(file, schema, "prompt", "data_source"), *type_faults(file, schema)]
    whole = joined([file], [schema])
    return [(fault.hard, fault.found) for fault in [*faults, *([whole] if whole else [])]]


def read_as_verl_does(file: Path, cache: Path) -> Any:
    import datasets

    return datasets.load_dataset("parquet", data_files=str(file), cache_dir=str(cache))["train"][0]["prompt"]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(MESSAGE), pa.list_(LARGE), pa.list_(MESSAGE, 1), pa.large_list(MESSAGE), pa.large_list(LARGE)],
    ids=str,
)
def test_what_is_read_as_messages(kind: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", table(pa.array(CHAT, kind)))
    assert [found for hard, found in said(file) if hard] == []
    assert read_as_verl_does(file, tmp_path / "cache") == CHAT[0]
    warned = [found for _, found in said(file)]
    assert bool(warned) is pa.types.is_large_list(kind)


@pytest.mark.parametrize("kind", [pa.list_view(MESSAGE), pa.large_list_view(MESSAGE)], ids=str)
def test_what_datasets_refuses(kind: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", table(pa.array(CHAT, kind)))
    hard = [found for hard, found in said(file) if hard]
    assert any("which datasets cannot read" in found for found in hard)
    with pytest.raises(Exception, match=r"dtype equivalent|not implemented|generating the dataset"):
        read_as_verl_does(file, tmp_path / "cache")


@pytest.mark.parametrize(
    ("prompt", "evidence"),
    [
        ([json.dumps(chat) for chat in CHAT], "perhaps JSON: verl does not parse it"),
        ([{"role": ["user"], "content": ["1+1?"]}] * 2, "one struct of lists"),
        (pa.array([[{"role": b"user", "content": b"x"}]] * 2), "column 'prompt' is list<"),
        ([["1+1?"]] * 2, "column 'prompt' is list<"),
        ([1, 2], "column 'prompt' is int64"),
    ],
)
def test_columns_that_are_no_messages(prompt: Any, evidence: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", table(prompt))
    assert any(hard and evidence in found for hard, found in said(file))


@pytest.mark.parametrize(
    ("columns", "evidence"),
    [
        (
            {"reward_model": [json.dumps({"ground_truth": "2"})] * 2},
            "column 'reward_model' is string, perhaps JSON",
        ),
        ({"reward_model": [{"style": "rule"}] * 2}, "column 'reward_model' is struct<style"),
        ({"data_source": [1, 2]}, "column 'data_source' is int64"),
        ({"extra_info": pa.array(["a", "b"], pa.string_view())}, "extra_info is string_view"),
        ({"extra_info": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))}, "extra_info is map<"),
    ],
)
def test_other_columns(columns: dict[str, Any], evidence: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", table(pa.array(CHAT, pa.list_(MESSAGE)), **columns))
    assert any(hard and evidence in found for hard, found in said(file))


def test_missing_columns_and_dictionaries(tmp_path: Path) -> None:
    plain = table(pa.array(CHAT, pa.list_(MESSAGE)))
    file = write(tmp_path / "a.parquet", plain.drop_columns(["reward_model"]))
    assert said(file) == [(True, "no column 'reward_model'; the file has prompt, data_source")]
    coded = plain.set_column(1, "data_source", pa.array(["a", "a"]).dictionary_encode())
    assert said(write(tmp_path / "b.parquet", coded)) == []


@pytest.mark.parametrize(("kind", "hard"), [("Sequence", False), ("List", False), ("Nonsense", True)])
def test_metadata_of_datasets(kind: str, hard: bool, tmp_path: Path) -> None:
    text = {"dtype": "string", "_type": "Value"}
    features: dict[str, Any] = {"prompt": {"feature": {"role": text, "content": text}, "_type": kind}}
    features |= {"data_source": text, "reward_model": {"style": text, "ground_truth": text}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    file = write(
        tmp_path / "a.parquet", table(pa.array(CHAT, pa.list_(MESSAGE))).replace_schema_metadata(metadata)
    )
    found = said(file)
    assert [
        (is_hard, "Sequence" in text_ or "List" in text_ or "refuses" in text_) for is_hard, text_ in found
    ] == [(hard, True)]
    if not hard:
        assert read_as_verl_does(file, tmp_path / "cache") == CHAT[0]


def test_metadata_that_cannot_be_read(tmp_path: Path) -> None:
    plain = table(pa.array(CHAT, pa.list_(MESSAGE)))
    file = write(tmp_path / "a.parquet", plain.replace_schema_metadata({"huggingface": "{"}))
    assert any(
        "its metadata for datasets cannot be read" in fault.found
        for fault in type_faults(file, pq.read_schema(file))
    )


@pytest.mark.parametrize(
    ("other", "joins"),
    [
        (table(pa.array(CHAT, pa.list_(MESSAGE))), True),
        (table(pa.array(CHAT, pa.list_(MESSAGE)), more=[1, 2]), True),
        (table(pa.array(CHAT, pa.large_list(LARGE))), False),
        (table(pa.array(CHAT, pa.list_(MESSAGE)), extra_info=[{"index": "a"}] * 2), False),
    ],
)
def test_files_that_join(other: pa.Table, joins: bool, tmp_path: Path) -> None:
    import datasets

    first = table(pa.array(CHAT, pa.list_(MESSAGE)), extra_info=[{"index": 1}] * 2)
    files = [write(tmp_path / "a.parquet", first), write(tmp_path / "b.parquet", other)]
    fault = joined(files, [pq.read_schema(file) for file in files])
    assert (fault is None) is joins
    sets = [
        datasets.load_dataset("parquet", data_files=str(file), cache_dir=str(tmp_path / "cache"))["train"]
        for file in files
    ]
    if joins:
        assert len(datasets.concatenate_datasets(sets)) == 4
    else:
        assert fault is not None
        assert fault.file == files[1]
        with pytest.raises(ValueError, match="align"):
            datasets.concatenate_datasets(sets)


def test_a_row_group_that_is_too_large(tmp_path: Path) -> None:
    class Group:
        total_byte_size = 3 << 30

    class Metadata:
        num_row_groups = 2

        def row_group(self, _: int) -> Group:
            return Group()

    (fault,) = group_faults(tmp_path / "a.parquet", Metadata())
    assert (fault.hard, "3.0 GiB" in fault.found) == (True, True)
    file = write(tmp_path / "b.parquet", table(pa.array(CHAT, pa.list_(MESSAGE))))
    assert list(group_faults(file, pq.read_metadata(file))) == []
