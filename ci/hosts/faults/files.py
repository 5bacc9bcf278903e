"""Faults of files and disks. Those of the shared folder are seen by one host only, as a mount that failed there is."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager

from ci.hosts.faults.login import sshd
from ci.hosts.model import SHARED, Host

# $1: what is to be missing. Its folder is covered by an empty one, into which everything else of it is mounted.
_HIDE = """
folder=$(dirname "$1"); name=$(basename "$1"); kept=$(mktemp -d /run/fault.XXXXXX)
mount --bind "$folder" "$kept"
mount -t tmpfs -o size=1m,mode=755 tmpfs "$folder"
for path in "$kept"/* "$kept"/.[!.]*; do
  [ -e "$path" ] || continue
  base=$(basename "$path"); [ "$base" != "$name" ] || continue
  if [ -d "$path" ]; then mkdir "$folder/$base"; else : > "$folder/$base"; fi
  mount --bind "$path" "$folder/$base"
done
echo "$kept"
"""
_SHOW = 'umount -R "$(dirname "$1")"; umount "$2"; rmdir "$2"'

_FLIP = """
import os, sys
facts = os.stat(sys.argv[1])
with open(sys.argv[1], "r+b") as stream:
    first = stream.read(1)
    stream.seek(0)
    stream.write(bytes([first[0] ^ 1]))
os.utime(sys.argv[1], ns=(facts.st_atime_ns, facts.st_mtime_ns))
"""


@contextmanager
def missing_path(host: Host, path: str) -> Iterator[None]:
    """The path is not there on this host, everything beside it is: data that was copied to all hosts but one."""
    kept = host.sh(_HIDE, path).strip()
    try:
        yield
    finally:
        host.sh(_SHOW, path, kept)


@contextmanager
def different_file(host: Host, path: str) -> Iterator[None]:
    """The file has the same name, size and date on this host, and other contents: a stale copy; the ranks train on different data."""
    script = """
other=$(mktemp /run/fault.XXXXXX); cp -p "$1" "$other"; python3 -c "$2" "$other"
mount --bind "$other" "$1"; echo "$other"
"""
    other = host.sh(script, path, _FLIP).strip()
    try:
        yield
    finally:
        host.sh('umount "$1"; rm "$2"', path, other)


@contextmanager
def unshared_root(host: Host, path: str = SHARED) -> Iterator[None]:
    """The shared folder is a copy on this host's own disk: all paths are there, checkpoints end up on one host; a mount that failed."""
    script = """
copy=$(mktemp -d /var/tmp/fault.XXXXXX); cp -a "$1/." "$copy"
mount --bind "$copy" "$1"; echo "$copy"
"""
    copy = host.sh(script, path).strip()
    try:
        yield
    finally:
        host.sh('umount "$1"; rm -rf "${2:?}"', path, copy)


@contextmanager
def read_only(host: Host, path: str = SHARED) -> Iterator[None]:
    """The folder is read-only on this host: the run dies at its first checkpoint; an NFS export without ``rw``, a disk with errors."""
    host.sh('mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"', path)
    try:
        yield
    finally:
        host.sh('umount "$1"', path)


@contextmanager
def unreadable_path(host: Host, path: str) -> Iterator[None]:
    """The path is there and may not be read on this host, root or not: an NFS export with ``root_squash``, or another user's files.

    Its mode becomes 0, and sshd's sessions on this host lose root's right to read all the same; other hosts' root keeps it.
    """
    mode = host.sh('stat -c %a "$1"', path).strip()
    rights = "-dac_override,-dac_read_search"
    with sshd(host, prefix=("setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}")):
        host.run(["chmod", "0", path])
        try:
            yield
        finally:
            host.run(["chmod", mode, path])


@contextmanager
def full_disk(host: Host, path: str, *, size: str = "1m") -> Iterator[None]:
    """No byte is left where this folder lies: logs, checkpoints or Ray's object spilling filled the disk."""
    with _mounted(host, path, size=size, inodes="1000"):
        host.sh('dd if=/dev/zero of="$1" bs=4096 2>/dev/null || :', posixpath.join(path, "full"))
        yield


@contextmanager
def no_inodes(host: Host, path: str) -> Iterator[None]:
    """Space is left and no file can be made: millions of small files; ``df`` looks fine, ``df -i`` does not."""
    with _mounted(host, path, size="64g", inodes="32"):
        host.sh('for i in $(seq 40); do touch "$1$i" 2>/dev/null || :; done', posixpath.join(path, "file"))
        yield


@contextmanager
def small_shm(host: Host, size: str = "8m") -> Iterator[None]:
    """Shared memory has this size: Ray's object store and data loaders die with a bus error; docker's default is 64 MiB."""
    before = host.sh("df --output=size /dev/shm | tail -n 1").strip()
    script = 'mount -o "remount,size=$1" /dev/shm'
    host.sh(script, size)
    try:
        yield
    finally:
        host.sh(script, f"{before}k")


@contextmanager
def _mounted(host: Host, path: str, *, size: str, inodes: str) -> Iterator[None]:
    host.sh('mount -t tmpfs -o "size=$2,nr_inodes=$3,mode=1777" tmpfs "$1"', path, size, inodes)
    try:
        yield
    finally:
        host.run(["umount", path])
