from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from verl_musa.data import prepare as module
from verl_musa.data.prepare import Options, prepare
from verl_musa.data.prepare_mapping import Mapping
from verl_musa.data.sources import SOURCES
from verl_musa.errors import DataError

SHARED = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
PLAIN = Mapping(prompt="q", ground_truth="a", data_source="sums", keep=("level",), suffix=" =")


def write(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def sums(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"q": f"{n} + 1", "a": n + 1, "level": n} for n in range(start, start + count)]


def options(tmp_path: Path, **changes: Any) -> Options:
    given = {
        "name": "custom",
        "sources": {"train": [write(tmp_path / "t.jsonl", *sums(30))]},
        "mappings": [PLAIN],
        "out": tmp_path / "out",
    }
    return Options(**{**given, **changes})


def test_the_layout_is_verl_s(tmp_path: Path) -> None:
    train, val = write(tmp_path / "t.jsonl", *sums(30)), write(tmp_path / "v.jsonl", *sums(5, start=100))
    made = prepare(options(tmp_path, sources={"train": [train], "val": [val]}))
    rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert len(rows) == 30
    assert rows[2] == {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": "2 + 1 ="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {"split": "train", "index": 2, "level": "2"},
    }
    assert made["splits"]["val"]["rows"] == 5
    assert made == json.loads((tmp_path / "out" / "prepared.json").read_text())
    assert made["sources"]["train"][0]["sha256"] == module._source(tmp_path / "t.jsonl", {})["sha256"]
    assert made["splits"]["train"]["columns"]["prompt"].startswith("list<")


def test_small_groups_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(options(tmp_path))
    monkeypatch.setattr(module, "GROUP_ROWS", 7)
    prepare(options(tmp_path, out=tmp_path / "small"))
    small = pq.ParquetFile(tmp_path / "small" / "train.parquet")
    assert small.metadata.num_row_groups == 5
    assert small.read().equals(pq.read_table(tmp_path / "out" / "train.parquet"))


def test_the_same_sources_give_the_same_bytes_and_are_left_alone(tmp_path: Path) -> None:
    first = prepare(options(tmp_path))
    stamp = (tmp_path / "out" / "train.parquet").stat().st_mtime_ns
    assert prepare(options(tmp_path)) == first
    assert (tmp_path / "out" / "train.parquet").stat().st_mtime_ns == stamp
    again = prepare(options(tmp_path, out=tmp_path / "again"))
    assert again["splits"] == first["splits"]


@pytest.mark.parametrize("planted", ["other.txt", "train.parquet", "prepared.json"])
def test_other_content_is_not_overwritten(planted: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / planted).write_text("{}" if planted == "prepared.json" else "mine")
    with pytest.raises(DataError, match="left as it is"):
        prepare(options(tmp_path))
    assert [path.name for path in out.iterdir()] == [planted]


def test_another_mapping_or_a_changed_file_is_other_content(tmp_path: Path) -> None:
    prepare(options(tmp_path))
    with pytest.raises(DataError) as caught:
        prepare(options(tmp_path, mappings=[PLAIN.model_copy(update={"suffix": ""})]))
    assert "mapping" in (caught.value.found or "")
    (tmp_path / "out" / "train.parquet").write_bytes(b"changed")
    with pytest.raises(DataError) as caught:
        prepare(options(tmp_path))
    assert "another train.parquet" in (caught.value.found or "")


def test_an_empty_folder_is_taken_and_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert prepare(options(tmp_path))["splits"]["train"]["rows"] == 30
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="left as it is"):
        prepare(options(tmp_path, out=tmp_path / "file"))


def test_duplicates_are_dropped_and_other_answers_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_ROWS", 4)
    rows = [*sums(6), *sums(6), {"q": "0 + 1", "a": 9, "level": 0}]
    source = write(tmp_path / "d.jsonl", *rows)
    facts = prepare(options(tmp_path, sources={"train": [source]}))["splits"]["train"]
    assert (facts["rows"], facts["rows_read"]) == (6, 13)
    assert (facts["duplicates_dropped"], facts["dropped_with_another_answer"]) == (7, 1)
    kept = prepare(options(tmp_path, sources={"train": [source]}, keep_duplicates=True, out=tmp_path / "all"))
    assert kept["splits"]["train"]["rows"] == 13
    index = [
        row["extra_info"]["index"] for row in pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    ]
    assert index == list(range(6))


def test_a_bad_row_stops_it_or_is_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "b.jsonl", *sums(3), {"q": "", "a": 1, "level": 0}, {"q": "x", "level": 0})
    with pytest.raises(DataError, match="cannot be mapped") as caught:
        prepare(options(tmp_path, sources={"train": [source]}))
    assert caught.value.where == f"{source}:4"
    assert not (tmp_path / "out").exists()
    facts = prepare(options(tmp_path, sources={"train": [source]}, skip_bad=True))["splits"]["train"]
    assert (facts["rows"], facts["bad_rows_skipped"]) == (3, 2)
    assert facts["first_bad_rows"][0] == "b.jsonl:4: 'q' is empty"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.jsonl", "out", "t.jsonl"]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "no rows"),
        ([{"x": 1}], "the columns do not fit"),
        ([{"q": "", "a": "", "level": ""}], "nothing is left"),
    ],
)
def test_nothing_to_prepare(rows: list[dict[str, Any]], says: str, tmp_path: Path) -> None:
    source = write(tmp_path / "n.jsonl", *rows)
    with pytest.raises(DataError, match=says):
        prepare(options(tmp_path, sources={"train": [source]}, skip_bad=True))
    assert not (tmp_path / "out").exists()


def test_no_files_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no files to prepare"):
        prepare(options(tmp_path, sources={}))
    with pytest.raises(DataError, match="no such file"):
        prepare(options(tmp_path, sources={"train": [tmp_path / "missing.jsonl"]}))


def test_the_first_mapping_that_fits_is_taken(tmp_path: Path) -> None:
    source = write(tmp_path / "p.jsonl", {"Problem": "1+1?", "Answer": "002"})
    made = prepare(
        Options(
            name="aime-2024",
            sources={"val": [source]},
            mappings=SOURCES["aime-2024"].mappings,
            out=tmp_path / "out",
        )
    )
    assert made["mapping"]["prompt"] == "Problem"
    assert pq.read_table(tmp_path / "out" / "val.parquet")["data_source"].to_pylist() == ["aime_2024"]


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, float]] = []
    prepare(options(tmp_path), lambda *seen: told.append(seen))
    assert told[-1] == ("train", 30, 1.0)


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data/gsm8k is not here")
def test_gsm8k_from_its_own_files(tmp_path: Path) -> None:
    made = prepare(
        Options(
            name="gsm8k",
            sources={"train": [SHARED / "train-1500.jsonl"], "val": [SHARED / "test.jsonl"]},
            mappings=SOURCES["gsm8k"].mappings,
            out=tmp_path / "gsm8k",
        )
    )
    assert {split: facts["rows"] for split, facts in made["splits"].items()} == {"train": 1500, "val": 1319}
    rows = pq.read_table(tmp_path / "gsm8k" / "val.parquet").to_pylist()
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    assert truths[:5] == ["18", "3", "70000", "540", "20"]
    # Written with commas in the source.
    assert sum("," in truth for truth in truths) == 0
    assert all(float(truth) == float(truth) for truth in truths)
    assert rows[0]["prompt"][0]["content"].endswith("\\boxed{}.")
