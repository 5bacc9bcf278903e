"""Log files: their last lines, and keeping them when Ray's own folder goes away."""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from pathlib import Path

LARGEST_FILE = 8 * 1024**2
LARGEST_FOLDER = 256 * 1024**2

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def tail(path: Path, lines: int, *, longest: int = 400) -> str:
    """The last ``lines`` lines of a text file without colour codes; empty when there is none."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as stream:
            last = deque((line.rstrip() for line in stream if line.strip()), maxlen=lines)
    except OSError:
        return ""
    return "\n".join(_COLOUR.sub("", line)[:longest] for line in last)


def keep_logs(session_logs: Path, into: Path) -> list[str]:
    """Copy Ray's session logs, so that they outlive its temporary folder.

    Only plain files are copied (no sockets, no links); of a file above ``LARGEST_FILE`` bytes the end is kept, and
    nothing more once ``LARGEST_FOLDER`` bytes are copied. Empty files are left out. The time of the last writing is kept:
    a worker's log often has no other.

    Returns:
        The names of the files that were cut or left out.
    """
    shortened: list[str] = []
    room = LARGEST_FOLDER
    for path in sorted(session_logs.rglob("*")) if session_logs.is_dir() else ():
        if path.is_symlink() or not path.is_file() or not (size := path.stat().st_size):
            continue
        name = str(path.relative_to(session_logs))
        if room <= 0:
            shortened.append(name)
            continue
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, target.open("wb") as copy:
            if size > min(LARGEST_FILE, room):
                source.seek(size - min(LARGEST_FILE, room))
                shortened.append(name)
            shutil.copyfileobj(source, copy)
            room -= copy.tell()
        when = path.stat()
        os.utime(target, ns=(when.st_atime_ns, when.st_mtime_ns))
    return shortened
