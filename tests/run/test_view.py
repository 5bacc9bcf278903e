from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest

from verl_musa.fileio import write_json
from verl_musa.run.directory import RunDirectory
from verl_musa.run.events import EventDisplay, events_file
from verl_musa.run.record import ClusterFacts, ProcessFacts, RunRecord
from verl_musa.run.signals import InterruptedRunError
from verl_musa.run.supervisor_state import state_file
from verl_musa.run.view import Viewer

Output = pytest.CaptureFixture[str]


@dataclass
class Shown:
    lines: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.lines.append(text)

    def phase(self, text: str) -> None:
        self.lines.append(f"… {text}")

    def step(self, step: int, total: int | None, _: dict[str, Any]) -> None:
        self.lines.append(f"step {step}/{total}")

    def close(self) -> None:
        """Nothing to close."""


def several(run: RunDirectory, record: RunRecord) -> None:
    record.cluster = ClusterFacts(nodes=2, devices_per_node=1, hosts=["a", "b"], head="a", site="", shared="")
    record.save(run.record)


def sign(run: RunDirectory, *, alive: bool, started: float | None = None) -> None:
    me = psutil.Process()
    pid = me.pid if alive else 2**22 + 1
    begun = me.create_time() if started is None else started
    write_json(
        state_file(run), {"pid": pid, "started": begun, "host": platform.node(), "beat": 1, "over": False}
    )


def viewer(run: RunDirectory, pause: Callable[[float], None] = lambda _: None) -> tuple[Viewer, Shown]:
    shown = Shown()
    return Viewer(run, shown, pause=pause), shown


def test_a_run_is_shown_to_its_end(run: RunDirectory, record: RunRecord, capsys: Output) -> None:
    several(run, record)
    sign(run, alive=True, started=psutil.Process().create_time())
    display = EventDisplay(events_file(run))
    display.event("attempt", number=1, hosts=["a (198.51.100.1)"])
    display.phase("waiting")

    def more(_: float) -> None:
        display.step(1, 3, {})
        display.event("card", text="first cause\n")
        record.set_status("failed", "it broke")
        record.save(run.record)
        display.event("end", code=1, error="it broke")

    watching, shown = viewer(run, more)
    assert watching.show() == 1
    assert shown.lines[1:] == ["attempt 1 on a (198.51.100.1)", "… waiting", "step 1/3"]
    captured = capsys.readouterr()
    assert "first cause" in captured.out
    assert captured.err == "verl-musa: error: it broke\n"


def test_leaving_changes_nothing_and_says_how_to_come_back(
    run: RunDirectory, record: RunRecord, capsys: Output
) -> None:
    several(run, record)
    sign(run, alive=True)

    def interrupt(_: float) -> None:
        raise InterruptedRunError("interrupted by SIGINT")

    before = run.record.read_text()
    assert viewer(run, interrupt)[0].show() == 130
    said = capsys.readouterr().err
    assert f"verl-musa follow {run.path.name}" in said
    assert f"verl-musa stop {run.path.name}" in said
    assert run.record.read_text() == before


def test_a_supervisor_that_was_killed_is_told(
    run: RunDirectory, record: RunRecord, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    several(run, record)
    sign(run, alive=False)
    ticks = iter(range(0, 1000, 5))
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    assert viewer(run)[0].show() == 1
    said = capsys.readouterr().err
    assert "has ended without a word; its job may still run" in said
    assert f"verl-musa resume {run.path.name}" in said


def test_an_end_of_an_earlier_attempt_is_not_this_ones(
    run: RunDirectory, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    several(run, record)
    display = EventDisplay(events_file(run))
    display.event("attempt", number=1, hosts=[])
    display.event("end", code=1, error="then")
    record.attempt.number = 2
    record.attempt.started_at = datetime.fromtimestamp(time.time() + 5, UTC).isoformat()
    record.save(run.record)  # a new attempt is prepared, its supervisor has not said a word yet

    def more(_: float) -> None:
        monkeypatch.setattr("time.time", lambda: 4e9)
        display.event("attempt", number=2, hosts=[])
        sign(run, alive=True)
        record.set_status("succeeded")
        record.save(run.record)
        display.event("end", code=0, error="")

    watching, shown = viewer(run, more)
    assert watching.show() == 0
    assert shown.lines[1:] == ["attempt 2 on "]


def test_a_run_on_one_host_is_shown_from_its_record(
    run: RunDirectory, record: RunRecord, capsys: Output
) -> None:
    me = psutil.Process()
    record.host = platform.node()
    record.attempt.runner = ProcessFacts(pid=me.pid, started=me.create_time())
    record.save(run.record)
    run.metrics.write_text('{"step": 1, "data": {"critic/score/mean": 0.5}}\n')

    def more(_: float) -> None:
        record.set_status("interrupted", "interrupted by SIGTERM")
        record.save(run.record)

    watching, shown = viewer(run, more)
    assert watching.show() == 130
    assert "step 1/3" in shown.lines
    assert "interrupted by SIGTERM" in capsys.readouterr().err


def test_a_run_on_one_host_without_its_runner_is_told(
    run: RunDirectory, record: RunRecord, capsys: Output
) -> None:
    record.host = platform.node()
    record.save(run.record)
    assert viewer(run)[0].show() == 1
    assert f"process {record.attempt.runner.pid}) is gone" in capsys.readouterr().err
