"""What answers of Ray's API and our own files say of a failure, as lines that rules can look at."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from verl_musa.diagnose.triage_read import Readable, UnreadableError, open_log
from verl_musa.diagnose.triage_sources import RunFacts, Source
from verl_musa.diagnose.triage_text import Stamp, Who

LARGEST = 4 << 20
MOST_LINES = 2000

Told = tuple[str, float | None, str]
"""A text, its time in seconds since the epoch, and what to look for in the file to find its line."""


def expanded(source: Source) -> Source:
    """``source``, or what it says where it is JSON of a known form."""
    path = source.path
    if path is None or path.suffix != ".json":
        return source
    try:
        with open_log(path) as stream:
            raw = _all(stream)
        if raw is None:
            return source
        value = json.loads(raw)
    except (UnreadableError, OSError, EOFError, zlib.error, ValueError, RecursionError):
        return source  # read as text, which says so where it cannot be read at all
    try:
        told = list(_told(value))
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError):
        return source
    if not told and not _known(value):
        return source
    return _as_lines(source, raw.decode("utf-8", "replace"), told)


def _all(stream: Readable) -> bytes | None:
    """The whole content, unless that is too much."""
    parts, size = [], 0
    while data := stream.read(LARGEST + 1 - size):
        parts.append(data)
        size += len(data)
        if size > LARGEST:
            return None
    return b"".join(parts)


def run_source(run: RunFacts) -> Source:
    """What the runner itself gave as the reason, dated to the end of the run."""
    lines = [(1, line, None) for line in run.exit_reason.splitlines()[:MOST_LINES]]
    if lines:
        first = Stamp(run.ended, 0) if run.ended is not None else None
        lines = [(1, lines[0][1], first), *lines[1:]]  # type: ignore[list-item]
    return Source("run.json", None, tuple(lines), Who(run.host, "verl-musa run"), run.ended)


def _as_lines(source: Source, raw: str, told: list[Told]) -> Source:
    lines: list[tuple[int, str, Stamp | None]] = []
    for text, when, needle in told:
        at = raw.find(needle) if needle else -1
        number = raw.count("\n", 0, at) + 1 if at > 0 else 1
        stamp = None if when is None else Stamp(when, 0)
        for line in text.splitlines()[:MOST_LINES]:
            lines.append((number, line, stamp))
            stamp = None
    return Source(source.name, None, tuple(lines[:MOST_LINES]), source.who, source.written, source.attempt)


def _known(value: Any) -> bool:
    """Whether every entry is of a form that is understood, so that nothing is missed by leaving the text out."""
    entries = list(_entries(value))
    return bool(entries) and all(_kind(entry) for entry in entries)


def _entries(value: Any) -> Iterator[dict[str, Any]]:
    for key in ("data", "result", "result"):
        if isinstance(value, dict) and key in value and isinstance(value[key], (dict, list)):
            value = value[key]
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))


def _kind(entry: dict[str, Any]) -> str:
    if "node_ip" in entry and "state" in entry:
        return "node"
    if "actor_id" in entry and "state" in entry:
        return "actor"
    if "submission_id" in entry and "status" in entry:
        return "job"
    if "run_id" in entry and "attempts" in entry:
        return "run"
    if isinstance(entry.get("checks"), list) and {"counts", "figures"} & set(entry):
        return "checks"
    return ""


def _told(value: Any) -> Iterator[Told]:
    for entry in _entries(value):
        yield from _TELLERS.get(_kind(entry), _nothing)(entry)


def _nothing(_entry: dict[str, Any]) -> Iterator[Told]:
    yield from ()


def _node(entry: dict[str, Any]) -> Iterator[Told]:
    message = str(entry.get("state_message") or "no reason given")
    if entry["state"] == "DEAD" and not message.startswith("Expected termination"):
        ended = entry.get("end_time_ms")
        yield f"Ray node {entry['node_ip']} is DEAD: {message}", _ms(ended), str(entry.get("node_id") or "")


def _actor(entry: dict[str, Any]) -> Iterator[Told]:
    cause = entry.get("death_cause") or {}
    context = next((part for part in cause.values() if isinstance(part, dict)), {})
    message = str(context.get("error_message") or "")
    if (
        entry["state"] != "DEAD"
        or not cause
        or "INTENDED_" in message
        or "creation_task_failure_context" in cause
    ):
        return
    where = context.get("node_ip_address") or entry.get("node_id") or "?"
    first = f"Ray actor {entry.get('class_name')} (pid={entry.get('pid')}, ip={where}) is DEAD: {message}"
    yield first, _ms(entry.get("end_time_ms") or entry.get("end_time")), str(entry["actor_id"])


def _job(entry: dict[str, Any]) -> Iterator[Told]:
    if entry["status"] == "FAILED":
        yield (
            str(entry.get("message") or "Job failed"),
            _ms(entry.get("end_time")),
            str(entry["submission_id"]),
        )


def _run(entry: dict[str, Any]) -> Iterator[Told]:
    if entry.get("status") == "failed":
        ended = entry.get("ended_at")
        when = datetime.fromisoformat(ended).timestamp() if ended else None
        yield str(entry.get("exit_reason") or "the run failed without a reason"), when, '"exit_reason"'


def _checks(entry: dict[str, Any]) -> Iterator[Told]:
    for result in entry["checks"]:
        if result["status"] == "FAIL":
            name = result["check"]
            yield f"check {name} FAIL: {result['evidence']}", None, json.dumps(name)


def _ms(value: Any) -> float | None:
    return float(value) / 1000 if isinstance(value, (int, float)) and value > 0 else None


_TELLERS = {"node": _node, "actor": _actor, "job": _job, "run": _run, "checks": _checks}


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory."""
    return (path / "run.json").is_file() and (path / "logs").is_dir()
