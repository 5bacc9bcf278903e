"""Faults of installations: one host has something else than the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ci.hosts.model import Host

# $1 = distribution, $2 = version. What importlib.metadata reads is changed, in place; prints the file.
_VERSION = """
import importlib.metadata, pathlib, re, shutil, sys
name, version = sys.argv[1:]
found = importlib.metadata.distribution(name)
file = pathlib.Path(found._path) / "METADATA"
shutil.copy2(file, f"{file}.before")
file.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", file.read_text(), count=1))
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


@contextmanager
def other_version(host: Host, distribution: str, version: str, *, python: str = "python3") -> Iterator[None]:
    """A package has another version on this host: Ray refuses the join; torch_musa or MCCL fail at the first collective.

    The package's own metadata says so, which is what pip and ``importlib.metadata`` read; its code is what it was.
    """
    file = host.run([python, "-c", _VERSION, distribution, version]).strip()
    try:
        yield
    finally:
        host.sh('mv "$1.before" "$1"', file)


@contextmanager
def other_python(host: Host, version: str, *, python: str = "python3") -> Iterator[None]:
    """Python has another version on this host, also only in its patch release: Ray refuses the join.

    The interpreter says so of itself (a ``sitecustomize`` changes what it reports): no second one can be had without a network.
    """
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = host.run([python, "-c", query]).strip()
    script = 'mkdir -p "$1"; [ ! -e "$1/sitecustomize.py" ]; printf %s "$2" > "$1/sitecustomize.py"'
    host.sh(script, folder, _OTHER_PYTHON.replace("{version}", version))
    try:
        yield
    finally:
        host.run(["rm", f"{folder}/sitecustomize.py"])


@contextmanager
def changed_file(host: Host, path: str, text: str) -> Iterator[None]:
    """A file of the installation differs on this host (``text`` is added to it): a hand-edited package, another series of patches."""
    host.sh('cp -p "$1" "$1.before"; printf %s "$2" >> "$1"', path, text)
    try:
        yield
    finally:
        host.sh('mv "$1.before" "$1"', path)
