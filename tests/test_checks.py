from __future__ import annotations

import io
import json
import threading

import pytest
from rich.console import Console

from verl_musa.checks import (
    Check,
    Finding,
    Result,
    Status,
    exit_code,
    fail,
    ok,
    render,
    run_checks,
    to_json,
    unknown,
    warn,
)
from verl_musa.errors import DataError


def _raises(error: Exception) -> Check[int]:
    def function(_: int) -> Finding:
        raise error

    return Check("raises", "an error", function)


def _result(status: Status) -> Result:
    return Result(check="c", looks_at="x", status=status, evidence="[bold]seen[/bold]", fix="do", where="f:1")


def test_the_runner_hands_the_subject_over() -> None:
    (result,) = run_checks([Check("a.b", "a number", lambda subject: ok(f"saw {subject}"))], 3)
    assert result == Result(check="a.b", looks_at="a number", status=Status.OK, evidence="saw 3")


def test_a_foreseeable_error_is_a_failure() -> None:
    error = DataError("bad file", where="x:3", found="nothing", expected="rows", fix="write rows")
    (result,) = run_checks([_raises(error)], 0)
    assert (result.status, result.evidence) == (Status.FAIL, "bad file; nothing")
    assert (result.where, result.fix) == ("x:3", "write rows")


def test_a_broken_check_is_unknown_and_hides_no_other() -> None:
    results = run_checks([_raises(ZeroDivisionError("oops")), Check("b", "b", lambda _: ok("fine"))], 0)
    assert [r.status for r in results] == [Status.UNKNOWN, Status.OK]
    assert "ZeroDivisionError: oops" in results[0].evidence


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], 0),
        ([Status.OK, Status.WARN], 0),
        ([Status.OK, Status.UNKNOWN], 3),
        ([Status.UNKNOWN, Status.FAIL, Status.WARN], 2),
    ],
)
def test_exit_code(statuses: list[Status], code: int) -> None:
    assert exit_code([_result(status) for status in statuses]) == code


def test_constructors() -> None:
    assert [f("a", "b").status for f in (warn, fail, unknown)] == [Status.WARN, Status.FAIL, Status.UNKNOWN]


def test_json() -> None:
    value = to_json([_result(Status.OK), _result(Status.WARN)])
    assert json.loads(json.dumps(value)) == value
    assert (value["schema"], value["exit_code"]) == (1, 0)
    assert value["counts"] == {"OK": 1, "WARN": 1, "FAIL": 0, "UNKNOWN": 0}
    assert set(value["checks"][0]) == {"check", "looks_at", "status", "evidence", "fix", "where"}


def test_render_shows_everything_and_reads_no_markup() -> None:
    stream = io.StringIO()
    render([_result(Status.FAIL)], Console(file=stream, width=100))
    text = stream.getvalue()
    for part in ("FAIL", "[bold]seen[/bold]", "f:1", "-> do", "1 checks: 1 FAIL"):
        assert part in text


def test_checks_that_run_at_a_time_keep_their_order() -> None:
    second_ran = threading.Event()

    def waits(_: int) -> Finding:
        return ok("both ran") if second_ran.wait(20) else fail("the second check never started", "run both")

    def tells(_: int) -> Finding:
        second_ran.set()
        return ok("told")

    results = run_checks([Check("a", "a", waits), Check("b", "b", tells)], 0, workers=2)
    assert [(r.check, r.evidence) for r in results] == [("a", "both ran"), ("b", "told")]
