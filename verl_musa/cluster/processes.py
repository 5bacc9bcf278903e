"""Which processes belong to a run, and how they are ended.

A process belongs to a run when its environment carries the run's id, when it descends from such a process, or
when it was seen to belong earlier (Ray and SGLang overwrite their environment block with a process title, so
the id alone would miss them once their parent is gone). Names play no part: two runs on one host never touch
each other.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

TAG = "VERL_MUSA_RUN_ID"
HOST_TAG = "VERL_MUSA_HOST"
"""Which host of a run on several hosts a process belongs to; two of them may be seen by one kernel."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (the kernel's fixed place for POSIX shared memory)

CLOCK_TOLERANCE_S = 3.0
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


def is_alive(process: psutil.Process) -> bool:
    """Whether the very process (not a later one with its pid) still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except _GONE:
        return False


def same_process_runs(pid: int, started: float) -> bool:
    """Whether the process ``pid`` that started at ``started`` (seconds since the epoch) still runs.

    The start times may differ by a second or two when the host's clock was set in between.
    """
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < CLOCK_TOLERANCE_S and is_alive(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def title_of(process: psutil.Process) -> str:
    """The process title as ``ps`` shows it, first word or two; empty when it is gone."""
    try:
        return " ".join(process.cmdline()).strip() or process.name()
    except (*_GONE, psutil.AccessDenied):
        return ""


class OwnedProcesses:
    """The processes of one run.

    Args:
        run_id: the value of ``VERL_MUSA_RUN_ID`` that marks them.
        host: of a run on several hosts, those of this host only (``VERL_MUSA_HOST``).
    """

    def __init__(self, run_id: str, host: str | None = None) -> None:
        self.run_id = run_id
        self._host = host
        self._known: dict[int, psutil.Process] = {}
        self._pids_seen: set[int] = set()

    @property
    def pids_seen(self) -> frozenset[int]:
        """Every pid that ever belonged to the run."""
        return frozenset(self._pids_seen)

    def remember(self, started: Mapping[int, float]) -> None:
        """Take processes for the run's that an earlier look found: pid -> start time in seconds since the epoch."""
        for pid, when in started.items():
            if same_process_runs(pid, when):
                with contextlib.suppress(*_GONE):
                    self._known[pid] = psutil.Process(pid)

    def _is_marked(self, environment: Mapping[str, str]) -> bool:
        if environment.get(TAG) != self.run_id:
            return False
        return self._host is None or environment.get(HOST_TAG, self._host) == self._host

    def refresh(self) -> list[psutil.Process]:
        """Look at the host's processes and return those of the run that are alive, parents first."""
        everything: dict[int, psutil.Process] = {}
        children: dict[int, list[int]] = {}
        tagged: list[int] = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                parent = process.ppid()
                everything[process.pid] = process
                children.setdefault(parent, []).append(process.pid)
                if self._is_marked(process.environ()):
                    tagged.append(process.pid)
            except (*_GONE, psutil.AccessDenied):
                continue
        remembered = [pid for pid, process in self._known.items() if everything.get(pid) == process]
        mine = _closure([*tagged, *remembered], children)
        mine.discard(os.getpid())
        self._known = {pid: everything[pid] for pid in sorted(mine) if pid in everything}
        self._pids_seen.update(self._known)
        return list(self._known.values())

    def end(
        self, *, term_s: float = 10.0, kill_s: float = 30.0, pause: Callable[[float], None] = time.sleep
    ) -> list[str]:
        """End every process of the run: SIGTERM, then SIGKILL, until none is left.

        Returns:
            The titles of the processes that outlived ``term_s + kill_s`` seconds; empty when all are gone.
        """
        asked: set[int] = set()
        deadline = time.monotonic() + term_s
        while time.monotonic() < deadline and (alive := self.refresh()):
            _signal((p for p in alive if p.pid not in asked), psutil.Process.terminate)
            asked.update(p.pid for p in alive)
            pause(0.2)
        deadline = time.monotonic() + kill_s
        while alive := self.refresh():
            if time.monotonic() > deadline:
                return [f"{p.pid} {title_of(p)}" for p in alive]
            _signal(alive, psutil.Process.kill)
            pause(0.2)
        return []

    def shared_memory(self) -> set[Path]:
        """The files under ``/dev/shm`` that the run's living processes have mapped."""
        found: set[Path] = set()
        for process in self.refresh():
            found |= _mapped_files(process.pid)
        return found


def _closure(roots: Iterable[int], children: dict[int, list[int]]) -> set[int]:
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, []))
    return found


def _signal(processes: Iterable[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(*_GONE, psutil.AccessDenied):
            send(process)


def _mapped_files(pid: int) -> set[Path]:
    try:
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended meanwhile
        return set()
    paths = {line.split(maxsplit=5)[5] for line in text.splitlines() if f" {SHARED_MEMORY}/" in line}
    return {Path(path) for path in paths if not path.endswith("(deleted)")}


def remove_shared_memory(mapped: Iterable[Path], pids: Iterable[int], *, since: float) -> list[Path]:
    """Unlink shared-memory files that an ended run left behind.

    Args:
        mapped: files that its processes had mapped.
        pids: its pids; torch names its segments ``torch_<pid>_...``.
        since: seconds since the epoch when the run began; older files are somebody else's.

    Returns:
        The files that were removed.
    """
    prefixes = tuple(f"torch_{pid}_" for pid in pids)
    named = (path for path in SHARED_MEMORY.iterdir() if prefixes and path.name.startswith(prefixes))
    removed: list[Path] = []
    for path in {*mapped, *named}:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            facts = path.stat()
            if facts.st_uid == os.getuid() and facts.st_ctime >= since - 1:
                path.unlink()
                removed.append(path)
    return sorted(removed)
