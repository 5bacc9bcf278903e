"""Rewrite an image so that equal content gives an equal id: what was laid over the base becomes one layer with fixed dates and order.

The base's own layers stay as they are. The result has the config of the build, but for its dates and its build history.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from verl_musa.errors import ImageError
from verl_musa.image.base import EPOCH
from verl_musa.image.engine import Engine

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
CHUNK = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)


def normalise(engine: Engine, reference: str, base: str, log: Path) -> str:
    """Replace the image behind ``reference`` by its normalised form; return the new id.

    Raises:
        ImageError: the image is not laid over ``base``.
    """
    below = engine.inspect(base)["RootFS"]["Layers"]
    built = engine.image_id(reference)
    with tempfile.TemporaryDirectory(prefix="normalise-", dir=log.parent) as folder:
        saved, target = Path(folder, "saved.tar"), Path(folder, "normal.tar")
        engine.save(reference, saved)
        with saved.open("rb") as source, tarfile.open(fileobj=source) as tar, target.open("wb") as out:
            _rewrite(tar, out, reference, below)
        saved.unlink()
        engine.load(target, log)
    normal = engine.image_id(reference)
    if normal != built:
        engine.remove(built)  # nameless now, and as large as the other
    return normal


def _rewrite(tar: tarfile.TarFile, out: IO[bytes], reference: str, below: Sequence[str]) -> None:
    """Write the saved image ``tar`` anew. Its gigabytes are read once and written once."""
    manifest = json.loads(_read(tar, "manifest.json"))[0]
    config = json.loads(_read(tar, manifest["Config"]))
    count = len(below)
    if config["rootfs"]["diff_ids"][:count] != list(below):
        raise ImageError("the image is not laid over its base", where=reference, expected=", ".join(below))
    names = [f"{index}/layer.tar" for index in range(count + 1)]
    for name, layer in zip(names, manifest["Layers"][:count], strict=False):
        member = _member(tar, layer)
        _write(out, _header(name, member.size), [_Piece(tar, member.offset_data, member.size)])
    pieces = _merged(tar, manifest["Layers"][count:])
    digest = _write(out, _header(names[-1], sum(len(piece) for piece in pieces)), pieces)
    config["rootfs"]["diff_ids"] = [*below, f"sha256:{digest}"]
    settled = json.dumps(_settled(config, count), sort_keys=True).encode()
    config_name = f"{hashlib.sha256(settled).hexdigest()}.json"
    listed = json.dumps([{"Config": config_name, "RepoTags": [reference], "Layers": names}]).encode()
    for name, content in ((config_name, settled), ("manifest.json", listed)):
        _write(out, _header(name, len(content)), [content])
    out.write(_END)


def _settled(config: dict[str, Any], count: int) -> dict[str, Any]:
    """The config without what differs between two builds of the same content."""
    moment = datetime.fromtimestamp(int(EPOCH), UTC).isoformat().replace("+00:00", "Z")
    kept: dict[str, Any] = {
        key: config[key] for key in ("architecture", "os", "rootfs", "config") if key in config
    }
    for key in ("Image", "Hostname"):  # the legacy builder names its intermediate containers and images there
        if key in kept["config"]:
            kept["config"][key] = ""
    history = [{"created": moment, "created_by": f"base layer {index}"} for index in range(count)]
    return {
        **kept,
        "created": moment,
        "history": [*history, {"created": moment, "created_by": "verl-musa image build"}],
    }


class _Piece:
    """A range of the saved image, read when it is written."""

    def __init__(self, tar: tarfile.TarFile, offset: int, size: int) -> None:
        self._tar, self._offset, self._size = tar, offset, size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        source = self._tar.fileobj
        if source is None:
            raise AssertionError("an open tar has its file")
        source.seek(self._offset)
        left = self._size
        while left and (piece := source.read(min(left, CHUNK))):
            left -= len(piece)
            yield piece
        if left:
            raise ImageError("the saved image ends too early", where=str(self._tar.name))


def _write(out: IO[bytes], header: bytes, pieces: Sequence[bytes | _Piece]) -> str:
    """Append one entry to a tar; return the digest of its content."""
    out.write(header)
    digest = hashlib.sha256()
    for piece in pieces:
        for data in (piece,) if isinstance(piece, bytes) else piece:
            digest.update(data)
            out.write(data)
    out.write(_padding(sum(len(piece) for piece in pieces)))
    return digest.hexdigest()


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, int(EPOCH), 0o644
    return _encoded(entry)


def _encoded(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _merged(tar: tarfile.TarFile, layers: Sequence[str]) -> list[bytes | _Piece]:
    """``layers`` laid over each other: the pieces of one sorted tar."""
    chosen: dict[str, tuple[int, tarfile.TarInfo]] = {}
    for layer in layers:
        _lay_over(chosen, tar, _member(tar, layer))
    pieces: list[bytes | _Piece] = []
    for path in sorted(chosen):
        start, member = chosen[path]
        pieces.append(_encoded(_plain(member, path)))
        if member.isreg() and member.size:
            pieces.append(_Piece(tar, start + member.offset_data, member.size))
            pieces.append(_padding(member.size))
    return [*pieces, _END]


def _lay_over(
    found: dict[str, tuple[int, tarfile.TarInfo]], tar: tarfile.TarFile, layer: tarfile.TarInfo
) -> None:
    """Add a layer's entries. A path that it takes away leaves its whiteout, since the base may have it."""
    own: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(fileobj=tar.extractfile(layer)) as source:
        for member in source:
            path = member.name.removeprefix("./").rstrip("/")
            folder, _, name = path.rpartition("/")
            if name == OPAQUE:
                _drop(found, f"{folder}/")
            elif name.startswith(WHITEOUT):
                _drop(found, f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/"))
            else:
                found.pop(f"{folder}/{WHITEOUT}{name}".lstrip("/"), None)  # taken away and put there again
            # A hard link as a copy: it would depend on which of the names came first.
            kept = _as_file(member, own[member.linkname.removeprefix("./")]) if member.islnk() else member
            own[path] = kept
            found[path] = (layer.offset_data, kept)


def _as_file(link: tarfile.TarInfo, real: tarfile.TarInfo) -> tarfile.TarInfo:
    copied = tarfile.TarInfo(link.name)
    copied.size, copied.mode, copied.uid, copied.gid = real.size, real.mode, real.uid, real.gid
    copied.offset, copied.offset_data, copied.type, copied.pax_headers = (
        real.offset,
        real.offset_data,
        tarfile.REGTYPE,
        {},
    )
    return copied


def _drop(found: dict[str, Any], prefix: str) -> None:
    for path in [
        path for path in found if path == prefix.rstrip("/") or path.startswith(f"{prefix.rstrip('/')}/")
    ]:
        if not (prefix.endswith("/") and path == prefix.rstrip("/")):
            del found[path]


def _plain(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """The entry without what differs between builds."""
    plain = tarfile.TarInfo(path)
    plain.type, plain.mode, plain.uid, plain.gid = member.type, member.mode, member.uid, member.gid
    plain.size, plain.linkname = (member.size if member.isreg() else 0), member.linkname
    plain.devmajor, plain.devminor = member.devmajor, member.devminor
    plain.mtime = int(EPOCH)
    kept = {key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")}
    plain.pax_headers = dict(sorted(kept.items()))
    return plain


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    stream = tar.extractfile(_member(tar, name))
    if stream is None:
        raise ImageError("not a file in the saved image", where=name)
    return stream.read()


def _member(tar: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    member = tar.getmember(name)
    if member.issym():  # the engine links a layer that occurs twice
        member = tar.getmember(os.path.normpath(Path(name).parent / member.linkname))
    return member
