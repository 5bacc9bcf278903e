"""docs/faults.md is made of results, and of nothing else."""

from __future__ import annotations

import json

import pytest

from ci.hosts.table import DOCUMENTS, END, LONGEST, ROOT, START, render, rows_of


def line(**changed: object) -> str:
    result = {
        "fault": "one way",
        "found_by": "net.reach",
        "host": "host3",
        "seconds": 4.2,
        "message": "no answer",
    }
    return json.dumps({**result, **changed})


def test_the_last_result_of_a_fault_counts() -> None:
    rows = rows_of([line(seconds=9.0), line(fault="slow link"), line(seconds=3.0)])
    assert [(row["fault"], row["seconds"]) for row in rows] == [("one way", "3.0"), ("slow link", "4.2")]


def test_half_a_result_is_refused() -> None:
    with pytest.raises(ValueError, match="found_by missing"):
        rows_of(['{"fault": "one way", "host": "host3", "seconds": 1, "message": ""}'])


def test_a_row_is_one_line_that_no_run_changes() -> None:
    message = "cannot read /tmp/pytest-of-x/pytest-7/data.bin | from 10.202.13.11\nat all" + "x" * 300
    text = render(rows_of([line(message=message)]), f"# Faults\n{START}{END}")
    (row,) = [one for one in text.splitlines() if one.startswith("| one way")]
    assert row.startswith(
        "| one way | net.reach | host3 | 4.2 | cannot read …/data.bin \\| from 10.202.0.11 at all"
    )
    assert len(row) < LONGEST + 60
    assert "1 faults, the slowest 4.2 s" in text


def test_only_the_table_of_a_document_changes() -> None:
    text = render(
        rows_of([line(), line(fault="slow link")]), f"# Faults\n\n{START}old\n{END}\nwhat they are not\n"
    )
    assert text.startswith(f"# Faults\n\n{START}| fault |")
    assert text.endswith(f"{END}\nwhat they are not\n")
    assert "old" not in text
    assert render(rows_of([line(), line(fault="slow link")]), text) == text


def test_both_documents_have_a_place_for_the_table() -> None:
    for name in DOCUMENTS:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert text.count(START) == text.count(END) == 1
