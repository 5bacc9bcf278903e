"""What a folder or a whole file system holds, in a form that two builds and two machines agree about.

An entry is a path, a kind, mode bits and a digest. Left out: dates, owners, and what a container or a package manager writes at run time.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from verl_musa.fileio import write_atomic

FORMAT = "verl-musa-tree-1"
CHUNK = 1 << 20
WORKERS = 4

SHARE = "opt/verl-musa/share/verl-musa"
"""Where an image keeps what is known about it; not part of its own content."""

RUNTIME = (
    "dev",
    "proc",
    "run",
    "sys",
    "tmp",
    "var/cache",
    "var/lib/apt/lists",
    "var/log",
    "var/tmp",
    SHARE,
)
"""Folders of an image whose content is none of its own."""

MOUNTED = frozenset({".dockerenv", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab"})
"""Files that an engine puts into each container."""

Listing = dict[str, str]
"""Path -> ``kind mode digest``; kind f (file), l (link), d (folder)."""


def content_hash(listing: Mapping[str, str]) -> str:
    """One SHA-256 for a listing."""
    digest = hashlib.sha256(f"{FORMAT}\n".encode())
    for path in sorted(listing):
        digest.update(f"{path}\0{listing[path]}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


class HashCache:
    """SHA-256 of files, kept by what the file system says of them (size, dates, inode), as git's index does.

    A file whose content changes gets another change date, which no program can set.

    Args:
        name: what the files belong to; one cache file for each. None: nothing is read or kept, only this process remembers.
    """

    def __init__(self, name: str | None) -> None:
        self._known: dict[str, list[object]] = {}
        self._changed = False
        self._file: Path | None = None
        if name is None:
            return
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._file = Path(base) / "verl-musa" / "hashes" / f"{key}.json"
        try:
            self._known = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._known = {}

    def get(self, path: str, facts: os.stat_result) -> str | None:
        """The digest of a file that has not changed since it was hashed."""
        known = self._known.get(path)
        return str(known[4]) if known is not None and known[:4] == _signature(facts) else None

    def put(self, path: str, facts: os.stat_result, digest: str) -> None:
        """Remember a digest; ``facts`` are those from before the file was read."""
        self._known[path] = [*_signature(facts), digest]
        self._changed = True

    def sha256(self, path: Path) -> str:
        """The digest of a file's content, read only where it may have changed.

        Raises:
            OSError: it cannot be read.
        """
        facts = path.stat()
        digest = self.get(str(path), facts)
        if digest is None:
            digest = sha256(path)
            self.put(str(path), facts, digest)
        return digest

    def save(self) -> None:
        """Keep what was hashed for the next time; a cache that cannot be written is only slower."""
        if not self._changed or self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file, json.dumps(self._known))
        except OSError:
            return
        self._changed = False


def _signature(facts: os.stat_result) -> list[object]:
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]


def sha256(path: Path | str) -> str:
    """The digest of a file's content, never from a cache.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as stream:  # noqa: PTH123  (a text path, for the sake of 50,000 calls)
        return hashlib.file_digest(stream, "sha256").hexdigest()


def list_folder(
    root: Path,
    *,
    keep: Callable[[str], bool] = lambda _: True,
    cache: HashCache | None = None,
    only_executable: bool = True,
) -> Listing:
    """List what lies below ``root``, without crossing into other file systems.

    Args:
        root: the folder.
        keep: called with each relative path; a folder that is not kept is not entered.
        cache: hashes that are known already; None: every file is read.
        only_executable: of a file's mode note only whether it may be run, as packages on different machines agree about.

    Raises:
        OSError: something cannot be read.
    """
    found: Listing = {}
    unknown: list[tuple[str, str, os.stat_result]] = []
    for relative, path, facts in _walk(str(root), keep):
        kind = stat.S_IFMT(facts.st_mode)
        if kind == stat.S_IFLNK:
            found[relative] = f"l - {os.readlink(path)}"  # noqa: PTH115  (a text path)
        elif kind == stat.S_IFREG:
            digest = cache.get(path, facts) if cache is not None else None
            if digest is None:
                unknown.append((relative, path, facts))
            else:
                found[relative] = f"f {_mode(facts.st_mode, only_executable)} {digest}"
        elif kind == stat.S_IFDIR and not only_executable:
            found[relative] = f"d {stat.S_IMODE(facts.st_mode):o} -"
    with ThreadPoolExecutor(WORKERS) as pool:  # hashing leaves the interpreter's lock
        digests = pool.map(sha256, [path for _, path, _ in unknown])
        for (relative, path, facts), digest in zip(unknown, digests, strict=True):
            found[relative] = f"f {_mode(facts.st_mode, only_executable)} {digest}"
            if cache is not None:
                cache.put(path, facts, digest)
    return found


def _mode(mode: int, only_executable: bool) -> str:
    if only_executable:
        return "755" if mode & stat.S_IXUSR else "644"
    return f"{stat.S_IMODE(mode):o}"


def _walk(root: str, keep: Callable[[str], bool]) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield (relative path, path, facts); text paths, since pathlib's cost more than all the rest."""
    device = os.stat(root).st_dev  # noqa: PTH116
    stack = [""]
    while stack:
        folder = stack.pop()
        for entry in os.scandir(os.path.join(root, folder)):  # noqa: PTH118
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if not keep(relative):
                continue
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                if facts.st_dev != device:
                    continue
                stack.append(relative)
            yield relative, entry.path, facts


def in_image(path: str) -> bool:
    """Whether a path below ``/`` belongs to an image's own content."""
    return path not in MOUNTED and not any(
        path == folder or path.startswith(f"{folder}/") for folder in RUNTIME
    )


def list_filesystem(root: Path = Path("/"), cache: HashCache | None = None) -> Listing:
    """List a whole file system as an image's content, with full mode bits; ``cache`` as for :func:`list_folder`."""
    return list_folder(root, keep=in_image, cache=cache, only_executable=False)


def list_tar(stream: IO[bytes]) -> Listing:
    """List the tar of a whole file system (``docker export``) as :func:`list_filesystem` lists the file system itself.

    Raises:
        tarfile.TarError: not a tar.
    """
    found: Listing = {}
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
        for member in tar:
            path = tar_path(member)
            if path and in_image(path):
                digest = _sha256_of(tar.extractfile(member)) if member.isreg() else ""
                entry = tar_entry(member, digest, found)
                if entry:
                    found[path] = entry
    return found


def tar_path(member: tarfile.TarInfo) -> str:
    """The path of an entry of a file system's tar, relative to its root; empty for the root."""
    return member.name.removeprefix("./").strip("/")


def tar_entry(member: tarfile.TarInfo, digest: str, found: Mapping[str, str]) -> str:
    """What a listing says of a tar's entry; empty for devices and pipes.

    Args:
        member: the entry.
        digest: SHA-256 of its content, for a file.
        found: the listing so far: a hard link is what its target is.
    """
    if member.islnk():
        return found.get(member.linkname.removeprefix("./"), "")
    if member.issym():
        return f"l - {member.linkname}"
    if member.isdir():
        return f"d {member.mode & 0o7777:o} -"
    return f"f {member.mode & 0o7777:o} {digest}" if member.isreg() else ""


def _sha256_of(stream: IO[bytes] | None) -> str:
    digest = hashlib.sha256()
    while stream is not None and (piece := stream.read(CHUNK)):
        digest.update(piece)
    return digest.hexdigest()


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Sorted paths that are in one listing only, or differ."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
