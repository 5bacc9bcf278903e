from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_musa.checks import Status
from verl_musa.lint import RULES, Finding, Report, Rule, lint, to_sarif

LEVELS = {"none", "note", "warning", "error"}


def check_structure(log: dict[str, Any]) -> None:
    """What SARIF 2.1.0 requires of the parts that are used here (sections 3.13, 3.14, 3.19, 3.27, 3.29, 3.30, 3.35)."""
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] in LEVELS
    for invocation in run["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)
        assert all(note["message"]["text"] for note in invocation["toolExecutionNotifications"])
    assert all(base["uri"].endswith("/") for base in run["originalUriBaseIds"].values())
    for result in run["results"]:
        check_result(result, run)


def check_result(result: dict[str, Any], run: dict[str, Any]) -> None:
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["level"] in LEVELS
    assert result["message"]["text"]
    for location in result["locations"]:
        artifact = location["physicalLocation"]["artifactLocation"]
        assert " " not in artifact["uri"]
        if "uriBaseId" in artifact:
            assert artifact["uriBaseId"] in run["originalUriBaseIds"]
            assert not artifact["uri"].startswith("/")
        else:
            assert artifact["uri"].startswith("file:///")
        region = location["physicalLocation"].get("region", {"startLine": 1})
        assert all(number >= 1 for number in region.values())
    for suppression in result.get("suppressions", []):
        assert suppression["kind"] in {"inSource", "external"}
        assert suppression["justification"]


def test_planted_tree(unpacked: Callable[[str], list[Any]], tmp_path: Path) -> None:
    unpacked("planted")
    report = lint([Path()])
    log = to_sarif(report, tmp_path)
    check_structure(log)
    results = log["runs"][0]["results"]
    assert len(results) == len(report.findings)
    assert {result["level"] for result in results} == {"error", "warning", "note"}
    assert log["runs"][0]["originalUriBaseIds"]["SRCROOT"]["uri"] == f"{tmp_path.resolve().as_uri()}/"


def test_waived_findings_are_suppressed_results(unpacked: Callable[[str], list[Any]], tmp_path: Path) -> None:
    unpacked("clean")
    log = to_sarif(lint([Path()]), tmp_path)
    check_structure(log)
    results = log["runs"][0]["results"]
    assert len(results) == 3
    assert all(result["suppressions"] for result in results)


def test_whole_files_other_rules_and_strange_names(tmp_path: Path) -> None:
    rule = Rule(id="data.columns", title="columns", status=Status.FAIL, fix="")
    places = [("a b/ä.yaml", 0, 0), ("/abs/x y.py", 3, 0), ("c.py", 3, 4)]
    findings = [
        Finding(rule=rule, file=file, line=line, column=column, message="m", fix="")
        for file, line, column in places
    ]
    log = to_sarif(Report(findings=findings, notes=["a.bin: left out"]), tmp_path)
    check_structure(log)
    found = [one["locations"][0]["physicalLocation"] for one in log["runs"][0]["results"]]
    assert found == [
        {"artifactLocation": {"uri": "a%20b/%C3%A4.yaml", "uriBaseId": "SRCROOT"}},
        {"artifactLocation": {"uri": "file:///abs/x%20y.py"}, "region": {"startLine": 3}},
        {
            "artifactLocation": {"uri": "c.py", "uriBaseId": "SRCROOT"},
            "region": {"startLine": 3, "startColumn": 4},
        },
    ]
    assert len(log["runs"][0]["tool"]["driver"]["rules"]) == len(RULES) + 1
