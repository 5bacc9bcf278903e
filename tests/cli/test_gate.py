from __future__ import annotations

import json
from pathlib import Path

import pytest

import verl_musa.run
from verl_musa import cli
from verl_musa.checks import Result, Status
from verl_musa.errors import JobFailedError
from verl_musa.run import RunOptions


def answer(monkeypatch: pytest.MonkeyPatch, *statuses: Status) -> list[RunOptions]:
    """Have the gate end with these results; returns what it was asked."""
    seen: list[RunOptions] = []
    results = [
        Result(check=f"gate.{place}", looks_at="x", status=status, evidence="seen", fix="mend")
        for place, status in enumerate(statuses)
    ]

    def fake(options: RunOptions) -> tuple[list[Result], Path]:
        seen.append(options)
        return results, Path("runs/tiny/1")

    monkeypatch.setattr(verl_musa.run, "gate_recipe", fake)
    return seen


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((Status.OK, Status.WARN), 0),
        ((Status.OK, Status.FAIL), 2),
        ((Status.UNKNOWN, Status.OK), 3),
        ((Status.UNKNOWN, Status.FAIL), 2),
    ],
)
def test_the_exit_code_is_that_of_the_results(
    statuses: tuple[Status, ...],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer(monkeypatch, *statuses)
    assert cli.main(["gate", "tiny"]) == code
    shown = capsys.readouterr().out
    assert "gate.1" in shown
    assert "runs/tiny/1" in shown


def test_json_holds_the_results_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = answer(monkeypatch, Status.FAIL)
    arguments = [
        "--json",
        "--variant",
        "split",
        "--set",
        "a=1",
        "--runs-dir",
        "elsewhere",
        "--ray-port",
        "7000",
    ]
    assert cli.main(["gate", "tiny", *arguments]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["exit_code"] == 2
    assert report["checks"][0]["fix"] == "mend"
    assert report["run"] == "runs/tiny/1"
    assert seen == [
        RunOptions(
            recipe="tiny", variants=("split",), sets=("a=1",), runs_dir=Path("elsewhere"), ray_port=7000
        )
    ]


def test_a_job_that_fails_before_the_gate_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(_options: RunOptions) -> tuple[list[Result], Path]:
        raise JobFailedError("a worker died")

    monkeypatch.setattr(verl_musa.run, "gate_recipe", fake)
    assert cli.main(["gate", "tiny"]) == 1
    assert "a worker died" in capsys.readouterr().err
