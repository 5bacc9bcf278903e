"""The sign of life of a run's supervisor, and the request to stop: two small files that every machine with the run sees."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from verl_musa.cluster.processes import same_process_runs
from verl_musa.fileio import write_json
from verl_musa.run.directory import RunDirectory

BEAT_S = 5.0
SILENT_S = 60.0
"""A supervisor on another machine that has given no sign for so long is taken for dead."""


def state_file(run: RunDirectory) -> Path:
    """Where the sign of life is."""
    return run.logs / "supervisor.json"


def stop_file(run: RunDirectory) -> Path:
    """Where the request to stop is."""
    return run.logs / "stop.json"


def ask_to_stop(run: RunDirectory, who: str) -> None:
    """Ask the supervisor, wherever it runs, to stop the run."""
    write_json(stop_file(run), {"asked_by": who, "time": time.time()})


def asked_to_stop(run: RunDirectory) -> str | None:
    """Who asked to stop the run; None where nobody did."""
    try:
        return str(json.loads(stop_file(run).read_text(encoding="utf-8"))["asked_by"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "somebody"


class Beat:
    """Writes the sign of life while entered, in a thread of its own.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._over = threading.Event()
        self._count = 0
        self._started = psutil.Process().create_time()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="beat")

    def __enter__(self) -> None:
        self._write()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(BEAT_S)
        self._write(over=True)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                self._write()
            except OSError:
                continue  # a shared folder may be away for a while; its readers see that, too

    def _write(self, *, over: bool = False) -> None:
        self._count += 1
        host = platform.node()
        write_json(state_file(self._run), {"pid": os.getpid(), "started": self._started, "host": host, "beat": self._count, "over": over})  # fmt: skip


@dataclass(frozen=True)
class Sign:
    """The last sign of life: where the supervisor runs, and a number that changes as long as it does."""

    pid: int
    started: float
    host: str
    beat: int
    over: bool
    age_s: float

    @property
    def here(self) -> bool:
        """Whether it ran on this machine."""
        return self.host == platform.node()

    @property
    def alive(self) -> bool:
        """Whether it still runs; on another machine, as far as the age of its last sign tells."""
        if self.over:
            return False
        return same_process_runs(self.pid, self.started) if self.here else self.age_s < SILENT_S


def sign_of(run: RunDirectory) -> Sign | None:
    """The supervisor's last sign of life; None where there never was one."""
    path = state_file(run)
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        age = time.time() - path.stat().st_mtime
        return Sign(int(value["pid"]), float(value["started"]), str(value["host"]), int(value["beat"]), bool(value["over"]), age)  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None
