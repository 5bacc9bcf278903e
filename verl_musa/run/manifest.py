"""Hashes of a finished checkpoint: written once verl has finished it, held against its files before a run goes on from it."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.fileio import write_json

MANIFEST = "verl-musa-manifest.json"
SCHEMA = 1
LARGEST_WHOLE = 1024**3
"""Files above this are hashed in ``SAMPLES`` blocks spread evenly, with their size: a checkpoint of hundreds of gigabytes would
otherwise be read twice over the network."""
SAMPLES = 64
BLOCK = 1024**2
_ZIP = b"PK\x03\x04"


def file_facts(path: Path, largest_whole: int = LARGEST_WHOLE) -> dict[str, Any]:
    """Size and SHA-256 of a file; ``how`` says whether all of it was read or samples.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode() + b"\n")
    with path.open("rb") as stream:
        if size <= largest_whole:
            while block := stream.read(BLOCK):
                digest.update(block)
            return {"size": size, "sha256": digest.hexdigest(), "how": "whole"}
        for number in range(SAMPLES):
            stream.seek((size - BLOCK) * number // (SAMPLES - 1))
            digest.update(stream.read(BLOCK))
    return {"size": size, "sha256": digest.hexdigest(), "how": f"{SAMPLES} samples"}


def _files(checkpoint: Path) -> list[Path]:
    return sorted(
        p for p in checkpoint.rglob("*") if p.is_file() and not p.is_symlink() and p.name != MANIFEST
    )


def write_manifest(checkpoint: Path) -> None:
    """Write the hashes of all files below ``checkpoint`` beside them.

    Raises:
        OSError: a file cannot be read, or has been removed meanwhile.
    """
    files = {str(path.relative_to(checkpoint)): file_facts(path) for path in _files(checkpoint)}
    write_json(checkpoint / MANIFEST, {"schema": SCHEMA, "written": time.time(), "files": files})


@dataclass(frozen=True)
class Verdict:
    """What holding a checkpoint against its hashes gave: ``wrong`` says what is not as it was, empty where all is.

    ``hashed``: whether there were hashes; without them the files were only read.
    """

    wrong: str
    hashed: bool


def verify(checkpoint: Path) -> Verdict:
    """Hold every file against the manifest; without one, see that every file can be read and is not cut off."""
    try:
        text = (checkpoint / MANIFEST).read_text(encoding="utf-8")
    except OSError:
        return Verdict(_unreadable(checkpoint), hashed=False)
    try:
        return Verdict(_changed(checkpoint, dict(json.loads(text)["files"])), hashed=True)
    except OSError as error:
        return Verdict(f"it cannot be read: {error}", hashed=True)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Verdict(f"{MANIFEST} is damaged", hashed=True)


def _changed(checkpoint: Path, files: dict[str, dict[str, Any]]) -> str:
    """The first file that is not as the manifest has it; sizes first, for they cost nothing."""
    for name, facts in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["size"]:
            return f"{name} has {path.stat().st_size} bytes and had {facts['size']}"
    for name, facts in files.items():
        if file_facts(checkpoint / name)["sha256"] != facts["sha256"]:
            return f"{name} is not what was written: its hash differs"
    return ""


def _unreadable(checkpoint: Path) -> str:
    for path in _files(checkpoint):
        try:
            file_facts(path)
            if _is_cut_off(path):
                return f"{path.relative_to(checkpoint)} is cut off"
        except OSError as error:
            return f"{path.relative_to(checkpoint)} cannot be read: {error}"
    return ""


def _is_cut_off(path: Path) -> bool:
    """Whether the end of a file of torch's or safetensors' is missing, as far as its own structure tells."""
    with path.open("rb") as stream:
        start = stream.read(8)
        if start.startswith(_ZIP):
            return not zipfile.is_zipfile(path)
        if path.suffix != ".safetensors" or len(start) < 8:  # noqa: PLR2004  (the length of the header's length)
            return False
        (length,) = struct.unpack("<Q", start)
        size = path.stat().st_size
        if 8 + length > size:
            return True
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return bool(8 + length + max(ends, default=0) > size)


class Manifests:
    """Writes the manifest of each checkpoint once verl has finished it, beside the work of the runner.

    Args:
        finished: the checkpoints that verl has finished and that have no hashes yet, in order.
        tell: told of a manifest that could not be written.
    """

    def __init__(self, finished: Callable[[], list[Path]], tell: Callable[[str], None]) -> None:
        self._finished = finished
        self._tell = tell
        self._tried: set[Path] = set()
        self._thread: threading.Thread | None = None

    def tend(self) -> None:
        """Begin with what is to be hashed, unless that is being done. Returns at once."""
        if self._thread is not None and self._thread.is_alive():
            return
        new = [path for path in self._finished() if path not in self._tried]
        if not new:
            return
        self._tried.update(new)
        self._thread = threading.Thread(target=self._write, args=(new,), daemon=True, name="manifest")
        self._thread.start()

    def finish(self, *, timeout_s: float) -> None:
        """At the end: hash what is still to be hashed, within a bound."""
        deadline = time.monotonic() + timeout_s
        for _ in range(2):  # some may be under way, and verl may have finished another one since
            self.tend()
            if self._thread is not None:
                self._thread.join(max(0.0, deadline - time.monotonic()))

    def _write(self, checkpoints: list[Path]) -> None:
        for checkpoint in reversed(checkpoints):  # the last one matters most
            try:
                write_manifest(checkpoint)
            except OSError as error:
                if checkpoint.is_dir():  # else verl has removed it meanwhile
                    self._tell(f"no hashes of {checkpoint.name}: {error}")
