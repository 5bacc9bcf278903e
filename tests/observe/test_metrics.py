from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from verl_musa.errors import RunError
from verl_musa.observe import metrics


def line(step: int, **data: float) -> str:
    return json.dumps({"step": step, "data": data}) + "\n"


def test_rows_are_read_joined_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line(0, a=1) + line(1, a=2) + line(1, b=3) + '\n{"step": 2, "da')
    assert metrics.read_rows(file) == {0: {"a": 1}, 1: {"a": 2, "b": 3}}
    assert metrics.read_rows(tmp_path / "none") == {}


def test_a_line_without_its_newline_is_still_being_written(tmp_path: Path) -> None:
    (tmp_path / "m").write_text(line(1, a=1) + line(2, a=2).strip())
    assert list(metrics.read_rows(tmp_path / "m")) == [1]


@pytest.mark.parametrize(
    "damaged", ["not json", "[1]", '{"step": 1}', '{"step": "x", "data": {}}', "\x00\x00"]
)
def test_a_damaged_line_is_named(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "m").write_text(line(1, a=1) + damaged + "\n" + line(2, a=1))
    with pytest.raises(RunError, match="m:2: a damaged line"):
        metrics.read_rows(tmp_path / "m")


def test_a_resumed_attempt_replaces_what_came_after_its_checkpoint() -> None:
    first = {0: {"v": 0}, 1: {"s": 1}, 2: {"s": 2}, 3: {"s": 3}}
    second = {2: {"v": 9}, 3: {"s": 30}, 4: {"s": 40}}
    assert metrics.fold([(0, first), (2, second)]) == {
        0: {"v": 0},
        1: {"s": 1},
        2: {"s": 2},
        3: {"s": 30},
        4: {"s": 40},
    }
    assert metrics.fold([(0, first), (0, {0: {"v": 5}})]) == {0: {"v": 5}}
    assert metrics.fold([(0, {1: {"s": 1}}), (2, {2: {"v": 9}})]) == {1: {"s": 1}, 2: {"v": 9}}
    assert metrics.fold([]) == {}


def test_written_rows_are_read_back(tmp_path: Path) -> None:
    rows: metrics.Rows = {1: {"a": 1.5, "n": None}, 2: {"a": 0.1}}
    metrics.write_rows(tmp_path / "m", rows)
    assert metrics.read_rows(tmp_path / "m") == rows


def test_numbers_are_picked_by_name_or_ending_and_are_finite() -> None:
    data = {"a": math.nan, "b": 2, "actor/perf/x": 1.0, "critic/perf/x": 3.0, "t": "text", "n": None}
    assert metrics.number(data, "a", "b") == 2
    assert metrics.number(data, "/perf/x") == 3.0
    assert metrics.number(data, "t", "n", "missing") is None


def test_derived_figures() -> None:
    data = {"perf/total_num_tokens": 100, "perf/time_per_step": 4, "actor/perf/max_memory_allocated_gb": 1.5}
    assert metrics.tokens_per_second(data) == 25
    assert metrics.tokens_per_second({}) is None
    assert metrics.device_memory(data) == 1.5
    assert metrics.validation_scores({"val-core/x/reward/mean@1": 0.5, "val-aux/y/mean@1": 1}) == {
        "val-core/x/reward/mean@1": 0.5
    }
    rows: metrics.Rows = {0: {metrics.SCORE: 1.0}, 1: {metrics.SCORE: 1.0}, 2: {"val-core/x/mean@1": 1}}
    assert list(metrics.training_rows(rows)) == [1]
    assert metrics.mean([]) is None
    assert metrics.mean([1, 2]) == 1.5
