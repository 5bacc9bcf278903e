"""The verbs about runs and clusters, without any host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_musa.cli import main
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import Attempt, DeviceFacts, ProcessFacts, RecipeFacts, RunRecord

Output = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a site without hosts, and a run that failed in its shared folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERL_MUSA_SITE", raising=False)
    shared = tmp_path / "shared"
    run = RunDirectory(shared / "runs" / "tiny" / "20260101T000000Z-abcdef")
    run.create()
    (tmp_path / "site.yaml").write_text(f"shared: {shared}\n")
    record = RunRecord(
        run_id=run.path.name,
        status="running",
        recipe=RecipeFacts(name="tiny", version="0.1.0", folder="recipes/tiny"),
        created_at="2026-01-01T00:00:00+00:00",
        seed=1,
        device=DeviceFacts(type="musa", simulated=True, count=1),
        host="elsewhere",
        python="3.11",
        versions={},
        git=None,
        sets=[],
        overrides=[],
        attempts=[
            Attempt(
                number=1,
                started_at="2026-01-01T00:00:00+00:00",
                runner=ProcessFacts(pid=2**22 + 1, started=1.0),
            )
        ],
    )
    record.set_status("failed", "it broke\nbadly")
    record.save(run.record)
    run.metrics.write_text('{"step": 3, "data": {}}\n')
    return run.path


def test_runs_of_the_shared_folder_are_listed(place: Path, capsys: Output) -> None:
    assert main(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["run"], row["status"], row["step"], row["path"]) == (place.name, "failed", 3, str(place))
    assert main(["list"]) == 0
    assert "failed" in capsys.readouterr().out


def test_the_status_of_a_run(place: Path, capsys: Output) -> None:
    assert main(["status", place.name[:8], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], shown["note"], shown["step"], shown["hosts"]) == ("failed", "it broke", 3, [])
    assert main(["status"]) == 0
    assert place.name[:8] in capsys.readouterr().out
    assert main(["status", "2027"]) == 2
    assert "no run begins with '2027'" in capsys.readouterr().err


def test_a_run_that_has_ended_is_shown_and_stopped_without_harm(place: Path, capsys: Output) -> None:
    before = (place / "run.json").read_text()
    assert main(["follow", str(place)]) == 1
    captured = capsys.readouterr()
    assert "verl-musa: failed: it broke" in captured.err
    assert main(["stop", str(place)]) == 0
    assert (place / "run.json").read_text() == before


def test_logs_of_a_run(place: Path, capsys: Output) -> None:
    folder = place / "logs" / "ray" / "attempt-1"
    folder.mkdir(parents=True)
    (folder / "raylet.out").write_text("one\ntwo\n")
    assert main(["logs", str(place), "--name", "raylet.out", "-n", "1"]) == 0
    assert capsys.readouterr().out == "two\n"
    assert main(["logs", str(place), "--name", "../../run.json"]) == 2
    assert main(["logs", str(place), "--host", "node7"]) == 2
    assert "the run has no host node7" in capsys.readouterr().err


def test_clusters_of_a_site(place: Path, capsys: Output) -> None:
    assert place.is_dir()
    assert main(["cluster", "status"]) == 0
    assert capsys.readouterr().out == "no clusters\n"
    assert main(["cluster", "status", "x"]) == 2
    assert main(["cluster", "up"]) == 2
    assert "no hosts are known" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../x", "a;reboot", "a b", "x" * 200])
def test_hostile_ids_are_refused(place: Path, capsys: Output, name: str) -> None:
    assert place.is_dir()
    assert main(["cluster", "down", name]) == 2
    assert "no id of a cluster" in capsys.readouterr().err
    assert main(["cluster", "up", "--id", name, "--hosts", "a", "--devices-per-node", "1"]) == 2


@pytest.mark.parametrize("host", ["-oProxyCommand=touch$IFS/tmp/x", "a;b", "$(id)", "a\nb", "ä"])
def test_hostile_hosts_are_refused(place: Path, capsys: Output, host: str) -> None:
    assert place.is_dir()
    assert main(["cluster", "up", f"--hosts={host}", "--devices-per-node", "1"]) == 2
    assert "not a host" in capsys.readouterr().err
