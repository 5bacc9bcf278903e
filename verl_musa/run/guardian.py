"""A small process beside the runner that ends the run when the runner cannot.

The runner holds the write end of a pipe to it. When the pipe closes without the word ``done``, the runner was
killed: the guardian ends every process of the run and writes the end into ``run.json``. It always ends with, or
within a bounded time after, its runner.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from verl_musa.cluster.processes import OwnedProcesses
from verl_musa.errors import VerlMusaError
from verl_musa.run.directory import RunDirectory
from verl_musa.run.finish import all_rows, clean_up, write_metrics
from verl_musa.run.record import RunRecord, load_record
from verl_musa.run.resume import TRACKER

DONE = b"done\n"
LOOK_S = 2.0
ROW_S = 5.0


class Guardian:
    """The runner's side: starts the guardian, keeps it alive, and lets it go.

    Args:
        run: the run directory.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        """Start it, or start another one when it has died."""
        if self._process is not None and self._process.poll() is None:
            return
        self._close_pipe()
        with (self._run.logs / "guardian.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "verl_musa.run.guardian", str(self._run.path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def release(self, *, timeout_s: float = 20.0) -> None:
        """Tell it that the run has ended in order, and wait for its end; kill it if it does not."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(DONE)
                self._process.stdin.flush()
        self._close_pipe()
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=timeout_s)

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


def watch(run: RunDirectory, pipe: int) -> int:
    """Wait for the runner's word or its death; in the latter case end the run. Returns the exit code."""
    owned = OwnedProcesses(run.path.name)
    said = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], LOOK_S)
        if not ready:
            owned.refresh()
            continue
        chunk = os.read(pipe, 64)
        said += chunk
        if said.endswith(DONE):
            return 0
        if not chunk:
            return take_over(run, owned)


def take_over(run: RunDirectory, owned: OwnedProcesses) -> int:
    """End the run of a runner that was killed, and say so in its record."""
    try:
        record = load_record(run.record)
    except VerlMusaError:
        owned.end()  # whatever the record looks like, nothing of the run may go on
        raise
    _await_row(run, record)
    for problem in clean_up(run, record, owned):
        sys.stderr.write(f"guardian: {problem}\n")
    write_metrics(run, record)
    record = load_record(run.record)
    if record.status not in {"succeeded", "failed", "interrupted"}:
        runner = record.attempt.runner.pid
        record.set_status("failed", f"the runner (process {runner}) was killed; its guardian ended the run")
        record.save(run.record)
    return 0


def _await_row(run: RunDirectory, record: RunRecord) -> None:
    """Give verl a moment to log a step whose checkpoint it has just written: a resume goes on after that step."""
    deadline = time.monotonic() + ROW_S
    with contextlib.suppress(OSError, ValueError, VerlMusaError):
        step = int((run.checkpoints / TRACKER).read_text(encoding="ascii"))
        while step not in all_rows(run, record) and time.monotonic() < deadline:
            time.sleep(0.2)


def main(argv: list[str] | None = None) -> int:
    """Guard the run directory named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    arguments = parser.parse_args(argv)
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # it ends with its runner, not before
    return watch(RunDirectory(arguments.run_dir), sys.stdin.fileno())


if __name__ == "__main__":
    sys.exit(main())
