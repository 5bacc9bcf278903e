"""Part of the probe: is what lies under each path the same data, and does the shared folder reach all hosts. Python 3.8 or newer."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import select
import time
from typing import Any

from verl_musa.cluster.preflight.probe import each_within, read_text

MOST_FILES = 20_000
LISTED = 300
SAMPLED = 24
BLOCK = 1 << 16
PATH_S = 6
POLL_S = 0.15
POKE_S = 1.0
ESCAPED = re.compile(r"\\([0-7]{3})")


def data_part(parameters: dict[str, Any]) -> dict[str, Any]:
    """Facts of each of ``parameters["paths"]`` and what became of the canary in ``parameters["shared"]``."""
    calls: dict[str, Any] = {
        name: functools.partial(path_facts, path) for name, path in parameters["paths"].items()
    }
    if parameters.get("shared"):
        calls["canary"] = functools.partial(canary, parameters)
        calls["shared"] = functools.partial(mount_of, parameters["shared"])
    found = each_within(parameters["seconds"] - 1, calls)
    return {"canary": found.pop("canary", None), "shared": found.pop("shared", None), "paths": found}


def path_facts(path: str) -> dict[str, Any]:
    """Whether a path is there, what is below it, and a hash over a sample of that."""
    if not os.path.lexists(path):
        parent = os.path.dirname(path)
        while not os.path.exists(parent) and parent != "/":
            parent = os.path.dirname(parent)
        return {"exists": False, "parent": parent}
    if not os.path.exists(path):
        return {"exists": False, "parent": "", "dangling": os.readlink(path)}
    kind = "folder" if os.path.isdir(path) else "file"
    readable = os.access(path, os.R_OK | (os.X_OK if kind == "folder" else 0))
    found: dict[str, Any] = {"exists": True, "kind": kind, "readable": readable, "mount": mount_of(path)}
    if readable:
        found.update(content_of(path, kind))
    return found


def content_of(path: str, kind: str) -> dict[str, Any]:
    """Names and sizes of the files, and a hash over the beginning, middle and end of some."""
    files = walk(path) if kind == "folder" else [("", os.path.getsize(path))]
    step = max(1, len(files) // SAMPLED)
    names = hashlib.sha256(
        "\n".join(f"{name} {size}" for name, size in files).encode("utf-8", "surrogateescape")
    )
    sampled, unreadable = {}, []
    until = time.monotonic() + PATH_S
    for name, size in files[::step][: SAMPLED + 1]:
        if time.monotonic() > until:
            break
        try:
            sampled[name] = sample_hash(os.path.join(path, name) if name else path, size)
        except OSError as error:
            unreadable.append(f"{name or path}: {error.strerror}")
    return {
        "files": len(files),
        "bytes": sum(size for _, size in files),
        "names": names.hexdigest()[:16],
        "listed": dict(files) if len(files) <= LISTED else None,
        "sampled": sampled,
        "unreadable": unreadable,
    }


def walk(path: str) -> list[tuple[str, int]]:
    """Relative name and size of every file below a folder, sorted; what Python and others cache there is passed over."""
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in ("__pycache__", ".git")]
        for name in names:
            whole = os.path.join(folder, name)
            try:
                found.append((os.path.relpath(whole, path), os.path.getsize(whole)))
            except OSError:
                found.append((os.path.relpath(whole, path), -1))
        if len(found) > MOST_FILES:
            break
    return sorted(found)


def sample_hash(path: str, size: int) -> str:
    """A hash over the size and three blocks of a file."""
    whole = hashlib.sha256(str(size).encode())
    with open(path, "rb") as stream:
        for start in sorted({0, max(0, size // 2 - BLOCK // 2), max(0, size - BLOCK)}):
            stream.seek(start)
            whole.update(stream.read(BLOCK))
    return whole.hexdigest()[:16]


def mount_of(path: str) -> dict[str, str] | None:
    """The mount that a path lies on."""
    real = os.path.realpath(path)
    best: tuple[int, dict[str, str] | None] = (-1, None)
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        words, tail = left.split(), right.split()
        if len(words) < 5 or len(tail) < 2:
            continue
        point = ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), words[4])
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= best[0]:
            best = (
                len(point),
                {"point": point, "kind": tail[0], "source": tail[1], "device": words[2], "root": words[3]},
            )
    return best[1]


def canary(parameters: dict[str, Any]) -> dict[str, Any]:
    """Leave a file in the shared folder, look for everybody else's, and take it away again.

    Two states in the file's name: ``here`` and, once this host has seen all others, ``seen``. A host takes its own away when all have
    seen all, or when the agreed time is over.
    """
    shared, nonce, me, names = (
        parameters["shared"],
        parameters["nonce"],
        parameters["me"],
        set(parameters["everybody"]),
    )
    if not os.path.isdir(shared):
        return {"error": "no such folder", "missing": sorted(names - {me})}
    folder = os.path.join(shared, f".verl-musa-canary-{nonce}")
    until = time.monotonic() + max(1.0, min(parameters["until"] - time.time(), parameters["seconds"] - 3))
    began = time.monotonic()
    here, seen_file = os.path.join(folder, f"{me}.here"), os.path.join(folder, f"{me}.seen")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(here, "x", encoding="utf-8") as stream:
            stream.write(nonce)
    except OSError as error:
        return {"error": error.strerror or str(error), "missing": sorted(names - {me})}
    seen: set[str] = {me}
    done: set[str] = set()
    took: float | None = None
    poke = time.monotonic() + POKE_S
    try:
        while time.monotonic() < until:
            listed = dict(name.rpartition(".")[::2] for name in os.listdir(folder))
            seen.update(listed)
            done.update(host for host, state in listed.items() if state == "seen")
            if took is not None:
                done.update(seen - set(listed))  # gone already: it had seen all
            if took is None and names <= seen:
                took = time.monotonic() - began
                os.rename(here, seen_file)
            if took is not None and names <= done:
                break
            if time.monotonic() > poke:
                poke = time.monotonic() + POKE_S
                refresh(os.path.join(folder, f"{me}.poke"))
            select.select([], [], [], POLL_S)  # not sleep(): where somebody shifts the clock, it may refuse
    finally:
        left = remove_own(folder, (here, seen_file))
    return {"missing": sorted(names - seen), "seconds": took, "left": left}


def refresh(path: str) -> None:
    """Make and remove a file: a client of NFS keeps a listing for up to a minute, unless it changes the folder itself."""
    with contextlib.suppress(OSError):
        with open(path, "x", encoding="utf-8"):
            pass
        os.unlink(path)


def remove_own(folder: str, files: tuple[str, ...]) -> list[str]:
    """Remove our own file, and the folder if we are the last; what is left of ours."""
    for path in files:
        with contextlib.suppress(OSError):  # it is in the other state
            os.unlink(path)
    with contextlib.suppress(OSError):  # others are still there: the last one removes it
        os.rmdir(folder)
    return [path for path in files if os.path.exists(path)]
