"""Faults of a recipe, as its own checks find them, in the lint's form."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from verl_musa.checks import Result, Status
from verl_musa.errors import VerlMusaError
from verl_musa.lint.files import RECIPE_FILE
from verl_musa.lint.model import Finding, Report, Rule

_PLACE: Final = re.compile(r"(.+?)(?::(\d+))?(?::(\d+))?")


def check(folder: Path, recipe_check: Callable[[Path], Sequence[Result]]) -> Report:
    """Check the recipe in ``folder``.

    What could not be looked at is a note: data and models that are not on this machine are no fault of the recipe's text.
    """
    try:
        results = recipe_check(folder)
    except VerlMusaError as error:
        seen = "; ".join(part for part in (error.message, error.found) if part)
        fix = error.fix or error.expected or ""
        results = [
            Result(
                check="recipe",
                looks_at="the recipe's files",
                status=Status.FAIL,
                evidence=seen,
                fix=fix,
                where=error.where or "",
            )
        ]
    report = Report()
    for result in results:
        if result.status is Status.UNKNOWN:
            report.notes.append(f"{folder}: {result.check} was not looked at: {result.evidence}")
        elif result.status is not Status.OK:
            report.findings.append(_finding(folder, result))
    return report


def _finding(folder: Path, result: Result) -> Finding:
    found = _PLACE.fullmatch(result.where) if result.where else None
    named = found is not None and (os.sep in found[1] or Path(found[1]).exists())
    file, line, column = (
        (found[1], found[2], found[3]) if found and named else (str(folder / RECIPE_FILE), None, None)
    )
    absolute, here = Path(file).resolve(), Path.cwd()
    shown = str(absolute.relative_to(here)) if absolute.is_relative_to(here) else file
    message = result.evidence if not result.where or named else f"{result.where}: {result.evidence}"
    rule = Rule(id=result.check, title=result.looks_at, status=result.status, fix=result.fix)
    return Finding(
        rule=rule,
        file=shown,
        line=int(line or 0),
        column=int(column or 0),
        message=message,
        fix=result.fix,
    )
