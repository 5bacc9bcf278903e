"""What a host remembers of the Rays that verl-musa started on it: one file each, in a folder of the user's on its own disk."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.cluster.processes import same_process_runs
from verl_musa.errors import HostError
from verl_musa.fileio import write_json

SCHEMA = 1
LOCK_S = 20.0


@dataclass
class NodeState:
    """One Ray of one host.

    Attributes:
        cluster: id of its cluster.
        owner: who brought it up.
        host: the host's name.
        address: the one that it registered with.
        head: whether it is the head.
        pid: of ``ray start``; 0 before it is started.
        started: start of that process, seconds since the epoch.
        temp_dir: Ray's temporary folder.
        ports: option of ``ray start`` -> port.
        num_gpus: devices that it hands out.
        created: when it was asked for, seconds since the epoch.
        logs: where its logs go at the end.
        seen: pid -> start time of its processes at the last look.
        engines: pid (as text) -> title, parent and when it was missed of engine processes.
    """

    cluster: str
    owner: str
    host: str
    address: str
    head: bool
    temp_dir: str
    ports: dict[str, int]
    num_gpus: int
    created: float
    logs: str | None = None
    pid: int = 0
    started: float = 0.0
    seen: dict[str, float] = field(default_factory=dict)
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether its ``ray start`` runs."""
        return self.pid > 0 and same_process_runs(self.pid, self.started)

    @property
    def session(self) -> Path | None:
        """The folder of its Ray session, once there is one."""
        found = sorted(Path(self.temp_dir).glob("session_[0-9]*"))
        return found[-1] if found else None


class NodeStates:
    """The files of this host.

    Args:
        folder: where they are; None for the user's folder in the system's temporary one.

    Raises:
        HostError: the folder is somebody else's.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.gettempdir()) / f"verl-musa-{os.getuid()}"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        facts = self.folder.lstat()
        if facts.st_uid != os.getuid() or self.folder.is_symlink() or facts.st_mode & 0o077:
            raise HostError(
                "the folder for the state of clusters can be changed by others",
                where=str(self.folder),
                found=f"owner {facts.st_uid}, mode {facts.st_mode & 0o777:o}",
                expected=f"a folder of user {os.getuid()} with mode 700",
                fix="have its owner remove it",
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the host's lock, for no longer than it takes to look and to start a process.

        Raises:
            HostError: another agent held it for too long.
        """
        with (self.folder / "lock").open("a") as stream:
            deadline = time.monotonic() + LOCK_S
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise HostError("another agent of verl-musa is busy on this host", where=str(self.folder),
                                        found=f"its lock held for {LOCK_S:.0f} s", fix="try again") from error  # fmt: skip
                    time.sleep(0.1)
            yield

    def log(self, cluster: str) -> Path:
        """Where the output of ``ray start`` goes."""
        return self.folder / f"{cluster}.log"

    def load(self, cluster: str) -> NodeState | None:
        """The state of a cluster on this host; None where there is none."""
        return _read(self.folder / f"{cluster}.json")

    def all(self) -> list[NodeState]:
        """Every cluster of the user's on this host."""
        found = (_read(path) for path in sorted(self.folder.glob("*.json")))
        return [state for state in found if state is not None]

    def save(self, state: NodeState) -> None:
        """Write a state, atomically."""
        write_json(self.folder / f"{state.cluster}.json", {"schema": SCHEMA, **asdict(state)})

    def forget(self, cluster: str) -> None:
        """Remove what is remembered of a cluster."""
        for path in (self.folder / f"{cluster}.json", self.log(cluster)):
            path.unlink(missing_ok=True)


def _read(path: Path) -> NodeState | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.pop("schema") != SCHEMA:
            return None
        return NodeState(**value)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
