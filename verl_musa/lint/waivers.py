"""Waivers in comments: ``# verl-musa: ignore[ID, ID] reason``.

One stands on the line of the finding, or alone above the statement or command that the finding belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from verl_musa.lint import rules
from verl_musa.lint.model import Analysis, Comment, Finding, Source

_WAIVER: Final = re.compile(r"#\s*verl-musa:\s*ignore\b(?:\[([^\]]*)\])?\s*(.*)")


@dataclass(frozen=True)
class _Waiver:
    line: int
    covers: int
    ids: tuple[str, ...]
    reason: str


def apply(
    source: Source, analysis: Analysis, selected: frozenset[str]
) -> tuple[list[Finding], list[Finding]]:
    """Split the findings into those that stand and those that a waiver covers; faulty waivers are findings too.

    Args:
        source: the file.
        analysis: its findings, of every rule.
        selected: ids of the rules that were asked for: a waiver of another one is not called unused.
    """
    waivers = [found for comment in analysis.comments if (found := _parse(source, comment)) is not None]
    standing, waived, used = [], [], set()
    for finding in analysis.findings:
        waiver = next((one for one in waivers if one.reason and _covers(one, finding)), None)
        if waiver is None:
            standing.append(finding)
            continue
        used.add((waiver.line, finding.rule.id))
        waived.append(replace(finding, waived=waiver.reason))
    for waiver in waivers:
        standing += _faults(source, waiver, used, selected)
    return standing, waived


def _parse(source: Source, comment: Comment) -> _Waiver | None:
    found = _WAIVER.search(comment.text)
    if found is None:
        return None
    ids = tuple(part.strip() for part in (found[1] or "").split(",") if part.strip())
    covers = _next_code(source, comment.line) if comment.alone else comment.line
    return _Waiver(comment.line, covers, ids, found[2].strip())


def _next_code(source: Source, line: int) -> int:
    """The next line with something on it that is not a comment."""
    for number, text in enumerate(source.lines[line:], start=line + 1):
        if text.strip() and not text.lstrip().startswith("#"):
            return number
    return line


def _covers(waiver: _Waiver, finding: Finding) -> bool:
    return finding.rule.id in waiver.ids and waiver.covers in (finding.line, finding.statement)


def _faults(
    source: Source, waiver: _Waiver, used: set[tuple[int, str]], selected: frozenset[str]
) -> Sequence[Finding]:
    unknown = [name for name in waiver.ids if name not in rules.RULES]
    faults = [source.finding(rules.WAIVER_UNKNOWN, waiver.line, 0, f"no rule {name!r}") for name in unknown]
    if not waiver.ids:
        faults.append(source.finding(rules.WAIVER_UNKNOWN, waiver.line, 0, "no rule is named"))
    if not waiver.reason:
        named = ", ".join(waiver.ids) or "nothing"
        faults.append(source.finding(rules.WAIVER_REASON, waiver.line, 0, f"waives {named} without a reason"))
        return faults
    idle = [
        name
        for name in waiver.ids
        if name in selected and name not in unknown and (waiver.line, name) not in used
    ]
    faults += [
        source.finding(rules.WAIVER_UNUSED, waiver.line, 0, f"waives {name}, which is not found here")
        for name in idle
    ]
    return faults
