from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa import cli
from verl_musa.cli import run as verb
from verl_musa.errors import JobFailedError
from verl_musa.run import RunOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    seen: list[RunOptions] = []

    def fake(options: RunOptions) -> int:
        seen.append(options)
        return 130

    monkeypatch.setattr(verb, "run_recipe", fake)
    return seen


def test_defaults(asked: list[RunOptions]) -> None:
    assert cli.main(["run", "qwen3"]) == 130
    assert asked == [RunOptions(recipe="qwen3")]


def test_every_option_arrives(asked: list[RunOptions], tmp_path: Path) -> None:
    arguments = [
        "--set",
        "a.b=1",
        "--set",
        "+c=[1]",
        "--resume",
        "2026",
        "--dry-run",
        "--runs-dir",
        str(tmp_path),
    ]
    more = ["--site", "site.yaml", "--ray-port", "7000", "--dashboard-port", "7001", "--stall-minutes", "2.5"]
    cli.main(["run", "qwen3", *arguments, *more])
    assert asked == [
        RunOptions(
            recipe="qwen3",
            sets=("a.b=1", "+c=[1]"),
            resume="2026",
            dry_run=True,
            runs_dir=tmp_path,
            site=Path("site.yaml"),
            ray_port=7000,
            dashboard_port=7001,
            stall_minutes=2.5,
        )
    ]


def test_a_failed_job_exits_with_1_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: RunOptions) -> int:
        raise JobFailedError("a worker died", fix="look")

    monkeypatch.setattr(verb, "run_recipe", fail)
    assert cli.main(["run", "qwen3"]) == 1
    assert capsys.readouterr().err == "verl-musa: error: a worker died\n  next step: look\n"


def test_a_wrong_option_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "qwen3", "--ray-port", "many"]) == 2
    assert "--ray-port" in capsys.readouterr().err
    assert cli.main(["run", "no-such-recipe-at-all"]) == 2
    assert "no-such-recipe-at-all" in capsys.readouterr().err


def test_the_gate_can_be_left_out(asked: list[RunOptions]) -> None:
    cli.main(["run", "qwen3", "--no-gate"])
    assert asked == [RunOptions(recipe="qwen3", gate="off")]
