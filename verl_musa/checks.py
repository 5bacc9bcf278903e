"""Checks with one result type, one runner and one renderer, shared by every room that looks before it leaps."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verl_musa.errors import VerlMusaError

Subject = TypeVar("Subject")

JSON_SCHEMA = 1
"""Version of the layout that :func:`to_json` writes."""


class Status(enum.StrEnum):
    """What a check found."""

    OK = "OK"
    """Looked at, and right."""

    WARN = "WARN"
    """Works, but probably not as meant."""

    FAIL = "FAIL"
    """Would fail, or train on the wrong thing."""

    UNKNOWN = "UNKNOWN"
    """Could not be looked at; never counted as right."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcome of one check.

    Attributes:
        check: id of the check, such as ``data.columns``.
        looks_at: what it looked at, for people.
        status: what it found.
        evidence: what it saw.
        fix: one line that says what to do; empty where nothing is wrong.
        where: file or ``file:line`` that the fix is about.
        host: the host that it is about, where there are several.
    """

    check: str
    looks_at: str
    status: Status
    evidence: str
    fix: str = ""
    where: str = ""
    host: str = ""


@dataclass(frozen=True)
class Finding:
    """What a check function returns; the runner adds the check's name to it."""

    status: Status
    evidence: str
    fix: str = ""
    where: str = ""


def ok(evidence: str) -> Finding:
    """A finding with nothing wrong."""
    return Finding(Status.OK, evidence)


def warn(evidence: str, fix: str, where: str = "") -> Finding:
    """A finding that does not stop a run."""
    return Finding(Status.WARN, evidence, fix, where)


def fail(evidence: str, fix: str, where: str = "") -> Finding:
    """A finding that stops a run."""
    return Finding(Status.FAIL, evidence, fix, where)


def unknown(evidence: str, fix: str = "", where: str = "") -> Finding:
    """A thing that could not be looked at."""
    return Finding(Status.UNKNOWN, evidence, fix, where)


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """One check.

    Attributes:
        name: its id.
        looks_at: what it looks at, for people.
        function: called with the subject; a :class:`VerlMusaError` that it raises is a FAIL.
    """

    name: str
    looks_at: str
    function: Callable[[Subject], Finding]


def run_checks(checks: Iterable[Check[Subject]], subject: Subject, *, workers: int = 1) -> list[Result]:
    """Run every check, in order, or ``workers`` at a time. A check that breaks is UNKNOWN, with the exception as its evidence."""
    if workers == 1:
        return [_run_one(check, subject) for check in checks]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda check: _run_one(check, subject), checks))


def _run_one(check: Check[Subject], subject: Subject) -> Result:
    try:
        found = check.function(subject)
    except VerlMusaError as error:
        seen = "; ".join(part for part in (error.message, error.found) if part)
        found = fail(seen, error.fix or error.expected or "", error.where or "")
    except Exception as error:  # noqa: BLE001  (one broken check must not hide what the others found)
        found = unknown(
            f"the check itself failed: {type(error).__name__}: {error}", "please report this with the recipe"
        )
    return Result(
        check=check.name,
        looks_at=check.looks_at,
        status=found.status,
        evidence=found.evidence,
        fix=found.fix,
        where=found.where,
    )


def exit_code(results: Sequence[Result]) -> int:
    """0: all OK or WARN. 2: something failed. 3: nothing failed, but something stayed unknown."""
    found = {result.status for result in results}
    if Status.FAIL in found:
        return 2
    return 3 if Status.UNKNOWN in found else 0


def to_json(results: Sequence[Result]) -> dict[str, Any]:
    """The results as plain data: ``{"schema", "exit_code", "counts", "checks"}``; ``host`` only where a result has one."""
    return {
        "schema": JSON_SCHEMA,
        "exit_code": exit_code(results),
        "counts": {status.value: sum(result.status is status for result in results) for status in Status},
        "checks": [
            {
                "check": result.check,
                "looks_at": result.looks_at,
                "status": result.status.value,
                "evidence": result.evidence,
                "fix": result.fix,
                "where": result.where,
                **({"host": result.host} if result.host else {}),
            }
            for result in results
        ],
    }


_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red", Status.UNKNOWN: "magenta"}


def render(results: Sequence[Result], console: Console) -> None:
    """Print one row a check, then how many ended how."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("seen, and what to do", overflow="fold")
    for result in results:
        seen = Text(result.evidence)
        if result.where:
            seen.append(f"\n{result.where}")
        if result.fix:
            seen.append(f"\n-> {result.fix}", style="bold")
        table.add_row(result.check, Text(result.status.value, style=_COLOURS[result.status]), seen)
    console.print(table)
    counts = ", ".join(
        f"{sum(result.status is status for result in results)} {status.value}"
        for status in Status
        if any(result.status is status for result in results)
    )
    console.print(f"{len(results)} checks: {counts}")
