from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from verl_musa.cluster.processes import TAG
from verl_musa.run import guardian
from verl_musa.run.directory import RunDirectory
from verl_musa.run.guardian import Guardian
from verl_musa.run.record import RunRecord, load_record

RUNNER = """
import sys, time
from pathlib import Path
from verl_musa.run.directory import RunDirectory
from verl_musa.run.guardian import Guardian
guardian = Guardian(RunDirectory(Path(sys.argv[1])))
guardian.ensure()
print(guardian._process.pid, flush=True)
time.sleep(60)
"""


def wait_until(ready: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_it_ends_the_run_of_a_killed_runner(run: RunDirectory, record: RunRecord) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    environment = {**os.environ, TAG: run.path.name}
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment)
    runner.kill()
    runner.wait(timeout=10)
    runner.stdout.close()
    assert worker.wait(timeout=60) != 0
    wait_until(lambda: load_record(run.record).status == "failed")
    assert f"the runner (process {record.attempt.runner.pid}) was killed" in str(
        load_record(run.record).exit_reason
    )
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.usefixtures("record")
def test_it_does_nothing_when_it_is_let_go(run: RunDirectory) -> None:
    kept = Guardian(run)
    kept.ensure()
    kept.release()
    assert kept._process is not None
    assert kept._process.returncode == 0
    assert load_record(run.record).status == "running"


@pytest.mark.usefixtures("record")
def test_a_dead_guardian_is_replaced(run: RunDirectory) -> None:
    kept = Guardian(run)
    kept.ensure()
    first = kept._process
    assert first is not None
    kept.ensure()
    assert kept._process is first
    first.kill()
    first.wait(timeout=10)
    kept.ensure()
    assert kept._process is not first
    kept.release()


def test_it_waits_for_the_row_of_a_step_that_was_saved(
    run: RunDirectory, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    monkeypatch.setattr(guardian, "ROW_S", 0.5)
    begun = time.monotonic()
    guardian._await_row(run, record)
    assert time.monotonic() - begun >= 0.5
    (run.logs / record.attempt.metrics_name).write_text('{"step": 2, "data": {}}\n')
    begun = time.monotonic()
    guardian._await_row(run, record)
    assert time.monotonic() - begun < 0.4
