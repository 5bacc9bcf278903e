"""Which worker died, of what, and what it said last."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from verl_musa.cluster.logs import tail
from verl_musa.cluster.processes import is_alive, title_of

LAST_LINES = 12
LONGEST_TITLE = 120
# Ends that Ray itself or the job brought about: they are never the cause of a failure.
WANTED_ENDS = ("RAY_KILL", "OUT_OF_SCOPE", "OWNER_DIED", "JOB_FINISHED", "REF_DELETED")
# Engine processes that a Ray worker starts beside itself: Ray doesn't know when one of them dies.
_EXIT = re.compile(r"Worker exit type: (\w+)")
ENGINE_TITLES = re.compile(r"sglang::|VLLM::|vllm::|EngineCore", re.IGNORECASE)


@dataclass(frozen=True)
class Death:
    """A worker that ended without being asked to."""

    who: str
    pid: int
    node: str
    cause: str
    last_lines: str = ""

    def __str__(self) -> str:
        said = (
            f"\n  its last log lines:\n{indented(self.last_lines)}"
            if self.last_lines
            else "\n  it logged nothing"
        )
        return f"{self.who} (pid {self.pid}, node {self.node}) died: {self.cause}{said}"


def indented(text: str) -> str:
    """``text`` with each line marked as quoted."""
    return "\n".join(f"    | {line}" for line in text.splitlines())


def dead_actors(actors: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The actors that died unexpectedly, out of what ``/api/v0/actors?detail=true`` lists."""
    return [actor for actor in actors if actor.get("state") == "DEAD" and _unexpected(actor)]


def _context(actor: dict[str, Any]) -> dict[str, Any]:
    cause = actor.get("death_cause") or {}
    return next((dict(value) for value in cause.values() if isinstance(value, dict)), {})


def _unexpected(actor: dict[str, Any]) -> bool:
    cause = actor.get("death_cause") or {}
    context = _context(actor)
    message = str(context.get("error_message", ""))
    if "creation_task_failure_context" in cause:
        return False  # its __init__ raised: the job's own traceback says more
    return context.get("reason") not in WANTED_ENDS and "INTENDED_" not in message and bool(cause)


def describe_actor(actor: dict[str, Any], session_dir: Path | None) -> Death:
    """Say who a dead actor was, what Ray knows of its end, and its last log lines."""
    context = _context(actor)
    pid = int(actor.get("pid") or context.get("pid") or 0)
    name = str(actor.get("name") or "")
    message = str(context.get("error_message") or "Ray gives no cause")
    return Death(
        who=f"worker {actor.get('class_name')}" + (f" {name!r}" if name else ""),
        pid=pid,
        node=str(context.get("node_ip_address") or str(actor.get("node_id") or "?")[:12]),
        cause=_short(message),
        last_lines=worker_log(session_dir, pid) if session_dir else "",
    )


def _short(message: str) -> str:
    """Ray's explanation without what it repeats and its long list of common causes."""
    text = message.partition(" Some common causes include")[0]
    kind, detail = _EXIT.search(text), text.partition("Worker exit detail: ")[2]
    if kind is None:
        return text
    if kind[1] == "SYSTEM_ERROR":
        return (
            f"its process was killed (SIGKILL, or for lack of memory) or crashed; Ray says: {detail or text}"
        )
    return f"Ray says: {kind[1]}: {detail or text}"


def worker_log(session_dir: Path, pid: int) -> str:
    """The last lines that the Ray worker ``pid`` wrote to its standard output and error."""
    logs = session_dir / "logs"
    files = [path for ending in ("out", "err") for path in sorted(logs.glob(f"worker-*-{pid}.{ending}"))]
    lines = [line for path in files for line in tail(path, LAST_LINES).splitlines()]
    lines = [line for line in lines if not line.startswith(":")]  # ":actor_name:..." marks of Ray's own
    return "\n".join(lines[-LAST_LINES:])


def driver_log(session_dir: Path, submission_id: str, lines: int = 25) -> str:
    """The last lines of the job's driver."""
    return tail(session_dir / "logs" / f"job-driver-{submission_id}.log", lines)


@dataclass(frozen=True)
class _Engine:
    process: psutil.Process
    title: str
    parent: int


@dataclass
class EngineWatch:
    """Watches engine processes such as SGLang's scheduler, which Ray knows nothing of.

    Args:
        node: how this host is named in messages.
        clock: seconds, monotonic.
    """

    node: str
    clock: Callable[[], float] = time.monotonic
    _seen: dict[int, _Engine] = field(default_factory=dict)
    _gone: dict[int, tuple[_Engine, float]] = field(default_factory=dict)

    def look(self, processes: Iterable[psutil.Process]) -> None:
        """Note which engine processes are there now and which have gone since the last look."""
        for process in processes:
            title = title_of(process)[:LONGEST_TITLE]
            if process.pid not in self._seen and ENGINE_TITLES.match(title):
                try:
                    self._seen[process.pid] = _Engine(process, title, process.ppid())
                except psutil.NoSuchProcess:
                    continue
        for pid, engine in self._seen.items():
            if pid not in self._gone and not is_alive(engine.process):
                self._gone[pid] = (engine, self.clock())

    def first_death(self, *, older_than_s: float, session_dir: Path | None) -> Death | None:
        """The engine process that vanished first, once that is ``older_than_s`` seconds ago."""
        if not self._gone:
            return None
        engine, when = min(self._gone.values(), key=lambda item: item[1])
        if self.clock() - when < older_than_s:
            return None
        return Death(
            who=f"engine process {engine.title!r} of Ray worker {engine.parent}",
            pid=engine.process.pid,
            node=self.node,
            cause="the process vanished (killed, for example by SIGKILL or for lack of memory, or it crashed)",
            last_lines=worker_log(session_dir, engine.parent) if session_dir else "",
        )
