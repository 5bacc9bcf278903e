"""What a supervisor tells: one JSON object a line in ``logs/events.jsonl``, and reading it as it grows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_musa.run.directory import RunDirectory

EVENTS = "events.jsonl"


def events_file(run: RunDirectory) -> Path:
    """Where they are."""
    return run.logs / EVENTS


class EventDisplay:
    """A display (see :class:`verl_musa.observe.display.Display`) that writes what it is told.

    Args:
        path: the file, which is added to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._phase = ""
        self._lock = threading.Lock()

    def event(self, kind: str, **more: Any) -> None:
        """Write one event."""
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **more}, ensure_ascii=False)
        with self._lock, self._path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    def note(self, text: str) -> None:
        """A line that stays."""
        self.event("note", text=text)

    def phase(self, text: str) -> None:
        """What is being waited for, where it has changed."""
        if text != self._phase:
            self._phase = text
            self.event("phase", text=text)

    def step(self, step: int, total: int | None, data: dict[str, Any]) -> None:
        """A finished step."""
        self.event("step", step=step, total=total, data=data)

    def close(self) -> None:
        """Nothing is being redrawn."""


class EventReader:
    """Reads the events of a file as they are written.

    Args:
        path: the file, there or not.
        offset: byte to begin at.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def new(self) -> Iterator[Mapping[str, Any]]:
        """The events since the last call; a line that is not whole yet waits, one that is none is left out."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                raw = stream.read()
        except FileNotFoundError:
            return
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def last_attempt(path: Path) -> int:
    """Where, in bytes, the events of the last attempt begin."""
    offset = found = 0
    try:
        with path.open("rb") as stream:
            for line in stream:
                if b'"kind": "attempt"' in line:
                    found = offset
                offset += len(line)
    except FileNotFoundError:
        return 0
    return found
