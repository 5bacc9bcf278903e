"""Faults of installations: one host has something else than the others.

The changed file is mounted over the real one, so that this works where the installation is read-only or shared.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager

from ci.hosts.model import Host

_VERSION = """
import importlib.metadata, pathlib, re, sys
name, version, target = sys.argv[1:]
found = importlib.metadata.distribution(name)
file = pathlib.Path(found._path) / "METADATA"
text = re.sub(r"(?m)^Version: .*$", f"Version: {version}", file.read_text(), count=1)
pathlib.Path(target).write_text(text)
print(file)
"""
_OTHER_PYTHON = """
import sys
_major, _minor, _micro = (int(part) for part in "{version}".split("."))
_before = "%d.%d.%d" % sys.version_info[:3]
sys.version = sys.version.replace(_before, "{version}", 1)
sys.hexversion = _major << 24 | _minor << 16 | _micro << 8 | 0xF0
class _Version(tuple):
    major, minor, micro, releaselevel, serial = _major, _minor, _micro, "final", 0
sys.version_info = _Version((_major, _minor, _micro, "final", 0))
"""

# $1 a folder that may be read-only: from here on it can be written, and what is written goes to memory.
_WRITABLE = """
memory=$(mktemp -d /run/fault.XXXXXX); mount -t tmpfs tmpfs "$memory"; mkdir "$memory/upper" "$memory/work"
mount -t overlay -o "lowerdir=$1,upperdir=$memory/upper,workdir=$memory/work" overlay "$1"
echo "$memory"
"""
_BACK = 'umount "$1"; umount "$2"; rmdir "$2"'


@contextmanager
def writable(host: Host, folder: str) -> Iterator[None]:
    """A folder of the host can be written in the block; what was written is gone after it."""
    memory = host.sh(_WRITABLE, folder).strip()
    try:
        yield
    finally:
        host.sh(_BACK, folder, memory)


@contextmanager
def other_version(host: Host, distribution: str, version: str, *, python: str = "python3") -> Iterator[None]:
    """A package has another version on this host: Ray refuses the join; torch_musa or MCCL fail at the first collective.

    The package's own metadata says so, which is what pip and ``importlib.metadata`` read; its code is what it was.
    """
    other = host.run(["mktemp", "/run/fault.XXXXXX"]).strip()
    file = host.run([python, "-c", _VERSION, distribution, version, other]).strip()
    host.run(["mount", "--bind", other, file])
    try:
        yield
    finally:
        host.sh('umount "$1"; rm "$2"', file, other)


@contextmanager
def other_python(host: Host, version: str, *, python: str = "python3") -> Iterator[None]:
    """Python has another version on this host, also only in its patch release: Ray refuses the join.

    The interpreter says so of itself (a ``.pth`` file runs what changes that at its start): no second one can be had without a network.
    """
    query = "import site; print(site.getsitepackages()[0])"
    folder = host.run([python, "-c", query]).strip()
    host.run(["mkdir", "-p", folder])
    with writable(host, folder):
        file = posixpath.join(folder, "fault_version")
        script = 'printf %s "$2" > "$1.py"; echo "import fault_version" > "$1.pth"'
        host.sh(script, file, _OTHER_PYTHON.replace("{version}", version))
        yield


@contextmanager
def changed_file(host: Host, path: str, text: str) -> Iterator[None]:
    """A file of the installation differs on this host (``text`` is added to it): a hand-edited package, another series of patches."""
    script = """
other=$(mktemp /run/fault.XXXXXX); cp -p "$1" "$other"; printf %s "$2" >> "$other"
mount --bind "$other" "$1"; echo "$other"
"""
    other = host.sh(script, path, text).strip()
    try:
        yield
    finally:
        host.sh('umount "$1"; rm "$2"', path, other)
