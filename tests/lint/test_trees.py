from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_musa.lint import RULES, lint

ROOT = Path(__file__).parents[2]
Unpacked = Callable[[str], list[Any]]


def test_every_planted_fault_is_found_at_its_line(unpacked: Unpacked) -> None:
    members = unpacked("planted")
    assert len(members) == 40
    report = lint([Path()])
    found: dict[str, list[str]] = {member.name: [] for member in members}
    for finding in report.findings:
        found[finding.file].append(f"{finding.rule.id}:{finding.line}")
    assert {name: sorted(ids) for name, ids in found.items()} == {
        member.name: sorted(member.expected) for member in members
    }
    assert report.files == 40
    assert report.notes == []


def test_every_rule_is_planted(unpacked: Unpacked) -> None:
    planted = {expected.rpartition(":")[0] for member in unpacked("planted") for expected in member.expected}
    assert planted == set(RULES)


def test_every_finding_says_what_to_do_and_shows_no_secret(unpacked: Unpacked) -> None:
    unpacked("planted")
    for finding in lint([Path()]).findings:
        assert finding.fix
        assert finding.message
        if finding.rule.id == "secret":
            assert len(finding.message) < 60


def test_clean_look_alikes_are_silent(unpacked: Unpacked) -> None:
    members = unpacked("clean")
    assert len(members) == 40
    report = lint([Path()])
    assert [(finding.where, finding.rule.id, finding.message) for finding in report.findings] == []
    assert report.files == 40
    assert report.notes == []
    assert Counter(finding.rule.id for finding in report.waived) == {"path.machine": 2, "path.user": 1}


def test_planted_python_is_no_accident(unpacked: Unpacked) -> None:
    """The look-alikes and all planted files but one are real Python: the lint does not pass by failing to parse."""
    for member in [*unpacked("planted"), *unpacked("clean")]:
        if member.name.endswith(".py") and "file.syntax:1" not in member.expected:
            ast.parse(member.text)


def test_this_repository_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    report = lint([Path()])
    assert [(finding.where, finding.rule.id, finding.message) for finding in report.findings] == []
    assert report.files > 300


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
def test_installed_verl_has_what_the_documentation_counts() -> None:
    """docs/lint.md classifies each of these by hand; another version is to be counted again."""
    report = lint(installed=["verl"])
    counts = Counter(finding.rule.id for finding in report.findings)
    assert report.notes[0].startswith("verl 0.9.1, files under ")
    assert counts == {"path.home": 34}
    table = (ROOT / "docs/lint.md").read_text(encoding="utf-8")
    assert "| `path.home` | 34 | 34 | 0 |" in table
