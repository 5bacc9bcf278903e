from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from verl_musa.cluster.processes import (
    SHARED_MEMORY,
    TAG,
    OwnedProcesses,
    is_alive,
    remove_shared_memory,
    same_process_runs,
)

SLEEP = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
PARENT_OF_UNTAGGED = (
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], env={});"
    "print(p.pid, flush=True); time.sleep(60)"
)


@pytest.fixture
def run_id() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    OwnedProcesses(name).end(term_s=0.1)


def start(run_id: str | None, code: str = SLEEP) -> subprocess.Popen[str]:
    environment = {**os.environ, **({TAG: run_id} if run_id else {})}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def finish(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(timeout=20)


def test_only_the_processes_of_the_run_are_found_and_ended(run_id: str) -> None:
    mine, stranger, other = start(run_id), start(None), start(f"{run_id}-2")
    try:
        owned = OwnedProcesses(run_id)
        assert [process.pid for process in owned.refresh()] == [mine.pid]
        assert owned.end() == []
        assert finish(mine) != 0
        assert stranger.poll() is None
        assert other.poll() is None
    finally:
        for process in (stranger, other):
            process.kill()
            finish(process)


def test_a_descendant_without_the_tag_is_ended_even_after_its_parent_died(run_id: str) -> None:
    parent = start(run_id, PARENT_OF_UNTAGGED)
    child = psutil.Process(int(told(parent)))
    owned = OwnedProcesses(run_id)
    assert {process.pid for process in owned.refresh()} == {parent.pid, child.pid}
    parent.kill()
    finish(parent)
    assert is_alive(child)
    assert [process.pid for process in owned.refresh()] == [child.pid]
    assert owned.end() == []
    assert not is_alive(child)
    assert owned.pids_seen == {parent.pid, child.pid}


def test_a_process_that_ignores_sigterm_is_killed(run_id: str) -> None:
    deaf = start(run_id, DEAF)
    assert told(deaf) == "deaf"
    assert OwnedProcesses(run_id).end(term_s=0.5) == []
    assert finish(deaf) == -9


def test_survivors_are_named(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(run_id)
    monkeypatch.setattr(psutil.Process, "terminate", lambda _: None)
    monkeypatch.setattr(psutil.Process, "kill", lambda _: None)
    (survivor,) = OwnedProcesses(run_id).end(term_s=0.1, kill_s=0.2)
    assert survivor.startswith(f"{process.pid} ")
    monkeypatch.undo()
    process.kill()
    finish(process)


def test_a_pid_of_another_start_time_is_another_process() -> None:
    me = psutil.Process()
    assert same_process_runs(me.pid, me.create_time())
    assert not same_process_runs(me.pid, me.create_time() - 100)
    gone = start(None, "pass")
    finish(gone)
    assert not same_process_runs(gone.pid, time.time())


def test_shared_memory_of_the_run_is_removed_and_older_files_stay(run_id: str) -> None:
    pid = 4_000_000 + int(uuid.uuid4().hex[:5], 16)  # above the kernel's highest pid
    mine, named, foreign = (SHARED_MEMORY / name for name in (run_id, f"torch_{pid}_1_2", f"torch_{pid}1_1"))
    code = f"import mmap, time; f = open({str(mine)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 4); print('x', flush=True); time.sleep(60)"
    try:
        for path in (mine, named, foreign):
            path.write_bytes(b"1234")
        holder = start(run_id, code)
        assert told(holder) == "x"
        owned = OwnedProcesses(run_id)
        mapped = owned.shared_memory()
        assert mine in mapped
        owned.end()
        finish(holder)
        assert remove_shared_memory([mine], [pid], since=time.time() + 60) == []
        assert remove_shared_memory([mine], [pid], since=time.time() - 60) == sorted([mine, named])
        assert foreign.exists()
        assert not mine.exists()
    finally:
        for path in (mine, named, foreign):
            Path(path).unlink(missing_ok=True)
