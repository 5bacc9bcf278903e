"""An output folder that appears whole or not at all, and an interrupted one that can be continued.

Everything is written into ``OUTPUT.partial`` beside the output. It holds no ``metadata.json`` and no index until it is
complete, so no loader takes it for a checkpoint; then it is renamed. A journal in it says which units are done.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_musa.errors import CheckpointError
from verl_musa.fileio import write_json

SUFFIX = ".partial"
PLAN = "conversion.partial.json"
LOCK = "conversion.lock"
SHOWN = 6
MARGIN = 64 << 20
"""Bytes that must stay free beyond what is written: metadata, journal and the file system's own needs."""


class PartialFolder:
    """The folder in which a conversion works.

    Args:
        output: the folder that is to appear.
        plan: what fixes the result; a resumed conversion must have the same.
    """

    def __init__(self, output: Path, plan: dict[str, Any]) -> None:
        self.output = output
        self.path = output.with_name(output.name + SUFFIX)
        self._plan = json.loads(json.dumps(plan))
        self._lock = -1

    def open(self, *, resume: bool) -> None:
        """Make the folder, or take up the one that an interrupted conversion left.

        Raises:
            CheckpointError: the output is not empty; a conversion was interrupted and ``resume`` is not asked for, or
                it was another one, or it still runs; or the place cannot be written to.
        """
        refuse_unless_empty(self.output)
        with _explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        try:
            self._take_up(resume=resume)
        except BaseException:
            self.close()
            raise

    def _take_up(self, *, resume: bool) -> None:
        """Decide what the folder is: new, another's, or an interrupted conversion.

        Raises:
            CheckpointError: it cannot be used as asked.
        """
        plan = self.path / PLAN
        if not plan.exists():
            others = sorted(
                path.name for path in self.path.iterdir() if path.name.lstrip(".")[:10] != PLAN[:10]
            )
            if others:
                raise CheckpointError(
                    "the folder to work in holds something else",
                    where=str(self.path),
                    found=_some(others),
                    fix="remove it, or name another output folder",
                )
        done = self.done() if plan.exists() else {}
        if done and not resume:
            raise CheckpointError(
                "an interrupted conversion lies here",
                where=str(self.path),
                found=f"{len(done)} finished parts",
                fix="continue it with --resume, or remove that folder",
            )
        if done:
            found = json.loads(plan.read_text(encoding="utf-8"))
            changed = sorted(key for key in {*found, *self._plan} if found.get(key) != self._plan.get(key))
            if changed:
                raise CheckpointError(
                    "the interrupted conversion was another one",
                    where=str(plan),
                    found=f"other {', '.join(changed)}",
                    fix="give the same source and options as before, or remove that folder and start anew",
                )
        else:
            with _explained(self.path):
                self._start_over()
                write_json(plan, self._plan)

    def _start_over(self) -> None:
        """Remove what an interrupted conversion without a finished part left."""
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in {LOCK, PLAN}:
                path.unlink()

    def require_space(self, needed: int) -> None:
        """Check that ``needed`` more bytes fit.

        Raises:
            CheckpointError: they do not.
        """
        free = shutil.disk_usage(self.path).free
        if free < needed + MARGIN:
            raise CheckpointError(
                "not enough space for the converted checkpoint",
                where=str(self.path),
                found=f"{free / 2**30:.2f} GiB free",
                expected=f"{(needed + MARGIN) / 2**30:.2f} GiB",
                fix="free some space, or name an output folder on another disk",
            )

    def done(self) -> dict[int, dict[str, Any]]:
        """The journal: each finished unit's own record, if its file still has the size that it was written with."""
        found = {}
        for file in sorted(self.path.glob("unit-*.json")):
            record = json.loads(file.read_text(encoding="utf-8"))
            data = self.path / record["file"]
            if data.is_file() and data.stat().st_size == record["bytes"]:
                found[int(record["unit"])] = record
        return found

    def record(self, unit: int, file: str, **values: Any) -> dict[str, Any]:
        """Flush a unit's file to disk and enter it into the journal."""
        path = self.path / file
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        record = {"unit": unit, "file": file, "bytes": path.stat().st_size, **values}
        write_json(self.path / f"unit-{unit:05d}.json", record)
        return record

    def commit(self) -> None:
        """Rename the folder to its final name, without the journal."""
        for file in self.path.glob("unit-*.json"):
            file.unlink()
        self.path.rename(self.output)
        # Last: until here the plan says whose folder this is.
        for name in (PLAN, LOCK):
            (self.output / name).unlink()
        folder = os.open(self.output.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.close()

    def close(self) -> None:
        """Give the lock back; the folder stays for ``--resume``."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors of the file system into messages, and give the lock back whatever happens."""
        try:
            with _explained(self.path):
                yield
        finally:
            self.close()

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise CheckpointError(
                "another conversion writes to this folder",
                where=str(self.path),
                fix="wait for it, or name another output folder",
            ) from None


def refuse_unless_empty(output: Path) -> None:
    """Check that ``output`` is missing or an empty folder.

    Raises:
        CheckpointError: it holds something; nothing is ever overwritten or skipped.
    """
    if not output.exists():
        return
    if not output.is_dir():
        raise CheckpointError(
            "the output is a file", where=str(output), expected="a folder", fix="name another output folder"
        )
    names = sorted(path.name for path in output.iterdir())
    if names:
        raise CheckpointError(
            "the output folder is not empty",
            where=str(output),
            found=_some(names),
            expected="no such folder, or an empty one",
            fix="name another output folder, or remove this one",
        )


def _some(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say what an error of the file system means here.

    Raises:
        CheckpointError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise CheckpointError(
            "the disk is full" if full else "the output folder cannot be written",
            where=str(error.filename or path),
            found=error.strerror or str(error),
            fix="free some space and continue with --resume; what is done is kept"
            if full
            else "make the folder above it writable, or name another output folder",
        ) from error
