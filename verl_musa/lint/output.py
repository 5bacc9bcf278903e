"""The report for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from verl_musa.checks import Status, to_json
from verl_musa.lint.model import Report

_COLOURS = {Status.WARN: "yellow", Status.FAIL: "bold red", Status.UNKNOWN: "magenta"}


def render(report: Report, console: Console) -> None:
    """Print ``file:line:col id message`` with its fix for each finding, then the notes and how many there were."""
    for finding in report.findings:
        line = Text(f"{finding.where} ")
        line.append(finding.rule.id, style=_COLOURS.get(finding.rule.status, ""))
        line.append(f" {finding.message}")
        console.print(line, soft_wrap=True)
        if finding.fix:
            console.print(Text(f"    -> {finding.fix}"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    counts = [
        f"{number} {status.value}"
        for status in (Status.FAIL, Status.WARN, Status.UNKNOWN)
        if (number := sum(one.rule.status is status for one in report.findings))
    ]
    waived = f", {len(report.waived)} waived" if report.waived else ""
    console.print(f"{report.files} files: {', '.join(counts) or 'nothing found'}{waived}")


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain data: that of :func:`verl_musa.checks.to_json`, and files, notes and waived findings."""
    waived = [
        {"check": one.rule.id, "where": one.where, "evidence": one.message, "reason": one.waived}
        for one in report.waived
    ]
    return {**to_json(report.results()), "files": report.files, "notes": report.notes, "waived": waived}
