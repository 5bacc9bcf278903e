"""Findings as SARIF 2.1.0, which code-review tools show beside the lines."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any, Final
from urllib.parse import quote

from verl_musa import __version__
from verl_musa.checks import Status
from verl_musa.lint.model import Finding, Report, Rule
from verl_musa.lint.rules import RULES

VERSION: Final = "2.1.0"
SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = {Status.FAIL: "error", Status.WARN: "warning", Status.UNKNOWN: "note", Status.OK: "none"}
_ROOT: Final = "SRCROOT"


def to_sarif(report: Report, root: Path) -> dict[str, Any]:
    """The report as one SARIF run; relative files are below ``root``."""
    found = [*report.findings, *report.waived]
    rules = {**RULES, **{finding.rule.id: finding.rule for finding in found}}
    order = {name: number for number, name in enumerate(rules)}
    notes = [{"level": "note", "message": {"text": note}} for note in report.notes]
    run = {
        "tool": {
            "driver": {
                "name": "verl-musa lint",
                "version": __version__,
                "rules": [_rule(one) for one in rules.values()],
            }
        },
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "originalUriBaseIds": {_ROOT: {"uri": f"{root.resolve().as_uri()}/"}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, order) for finding in found],
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "help": {"text": rule.fix or rule.title},
        "defaultConfiguration": {"level": _LEVELS[rule.status]},
    }


def _result(finding: Finding, order: dict[str, int]) -> dict[str, Any]:
    path = PurePath(finding.file)
    artifact = (
        {"uri": path.as_uri()} if path.is_absolute() else {"uri": quote(path.as_posix()), "uriBaseId": _ROOT}
    )
    place: dict[str, Any] = {"artifactLocation": artifact}
    if finding.line:
        place["region"] = {
            "startLine": finding.line,
            **({"startColumn": finding.column} if finding.column else {}),
        }
    result: dict[str, Any] = {
        "ruleId": finding.rule.id,
        "ruleIndex": order[finding.rule.id],
        "level": _LEVELS[finding.rule.status],
        "message": {"text": f"{finding.message}. Fix: {finding.fix}" if finding.fix else finding.message},
        "locations": [{"physicalLocation": place}],
    }
    if finding.waived:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.waived}]
    return result
