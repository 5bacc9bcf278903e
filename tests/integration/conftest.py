"""Whole jobs through the command line, as a user starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from verl_musa.cluster.processes import OwnedProcesses

JOB_LIMIT_S = 900
RECIPE = "qwen3-tiny-dense"


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the run's metrics, one mapping a step; empty before the first step."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def record_of(run_dir: Path) -> dict[str, Any]:
    """Return the run's `run.json`."""
    record: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
    return record


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Return the live processes of this run."""
    return OwnedProcesses(run_dir.name).refresh()


@dataclass
class Cli:
    """The `verl-musa` command with its own runs folder; ends what it started."""

    runs: Path
    log: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    earlier_runs: int = 0

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """Start `verl-musa run …` in the background with its output in ``log``."""
        self.earlier_runs = len(self.run_dirs())
        command = [str(Path(sys.executable).with_name("verl-musa")), "run", *arguments]
        with self.log.open("ab") as stream:
            process = subprocess.Popen(
                [*command, "--runs-dir", str(self.runs)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
            )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **env: str) -> int:
        """Run `verl-musa run …` to its end and return the exit code."""
        return self.start(*arguments, **env).wait(timeout=JOB_LIMIT_S)

    def run_dirs(self) -> list[Path]:
        """Return the run directories made so far, oldest first."""
        return sorted(path.parent for path in self.runs.glob("*/*/run.json"))

    def wait_for_step(self, process: subprocess.Popen[bytes], step: int) -> Path:
        """Wait until the run started last has logged ``step`` and return its directory."""
        deadline = time.monotonic() + JOB_LIMIT_S
        while time.monotonic() < deadline:
            assert process.poll() is None, f"ended early with {process.returncode}:\n{self.output()[-4000:]}"
            for run_dir in self.run_dirs()[self.earlier_runs :]:
                if any(row["step"] >= step for row in metrics_of(run_dir)):
                    return run_dir
            time.sleep(0.2)
        raise AssertionError(f"no step {step} within {JOB_LIMIT_S} s:\n{self.output()[-4000:]}")

    def killed_after_step(self, step: int, *arguments: str) -> Path:
        """Start a run, kill the runner without warning once ``step`` is saved, and return its directory when all has ended."""
        process = self.start(*arguments)
        run_dir = self.wait_for_step(process, step)
        marker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
        assert marker.read_text().strip() == str(step)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        deadline = time.monotonic() + 90
        while processes_of(run_dir) or record_of(run_dir)["status"] == "running":
            assert time.monotonic() < deadline, processes_of(run_dir)
            time.sleep(0.5)
        assert record_of(run_dir)["status"] == "failed"
        return run_dir

    def output(self) -> str:
        """Return what the command has printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        """Interrupt what still runs, then make sure that it is gone."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(timeout=120)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    command = Cli(runs=tmp_path / "runs", log=tmp_path / "output.txt")
    try:
        yield command
    finally:
        command.close()
        sys.stdout.write(command.output()[-20000:])
