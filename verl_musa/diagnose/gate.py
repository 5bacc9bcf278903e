"""The gate's verdicts as files: what the job wrote, and ``gate.json`` of a run with everything in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.checks import Result, Status, to_json
from verl_musa.errors import RunError
from verl_musa.fileio import write_json

JOB_FILE = "gate.json"
"""What the job writes below the logs folder."""

JOB_SCHEMA = 1


@dataclass(frozen=True)
class JobVerdict:
    """What the job found.

    Attributes:
        results: one a check.
        figures: numbers behind them, by name.
        skipped: why the job left the gate out; empty where it ran.
    """

    results: list[Result]
    figures: dict[str, Any]
    skipped: str = ""


def job_verdict(logs: Path) -> JobVerdict | None:
    """What the job of a run wrote; None where it wrote nothing, that is, never got that far.

    Raises:
        RunError: the file cannot be read.
    """
    path = logs / JOB_FILE
    if not path.exists():
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        results = [_result(entry) for entry in _checked(report)["checks"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            "the gate's verdicts cannot be read",
            where=str(path),
            found=f"{type(error).__name__}: {error}",
            expected=f"a gate.json of schema {JOB_SCHEMA}",
            fix="run the gate again: verl-musa gate RECIPE",
        ) from error
    return JobVerdict(results, report.get("figures", {}), report.get("skipped", ""))


def _checked(report: dict[str, Any]) -> dict[str, Any]:
    if report["schema"] != JOB_SCHEMA:
        raise ValueError(f"schema {report['schema']!r}")
    return report


def _result(entry: dict[str, str]) -> Result:
    return Result(
        check=entry["check"],
        looks_at=entry["looks_at"],
        status=Status(entry["status"]),
        evidence=entry["evidence"],
        fix=entry["fix"],
        where=entry["where"],
    )


def write_gate(path: Path, recipe: str, results: Sequence[Result], verdict: JobVerdict | None) -> None:
    """Write a run's ``gate.json``: the results as every check command prints them, and the figures behind them."""
    extra = {} if verdict is None else {"figures": verdict.figures, "skipped": verdict.skipped}
    write_json(path, {"recipe": recipe, **to_json(results), **extra})


def read_gate(path: Path) -> list[Result]:
    """The results in a run's ``gate.json``; none where there is no such file."""
    if not path.exists():
        return []
    return [_result(entry) for entry in json.loads(path.read_text(encoding="utf-8"))["checks"]]


def failures(results: Sequence[Result]) -> list[Result]:
    """Those that failed."""
    return [result for result in results if result.status is Status.FAIL]
