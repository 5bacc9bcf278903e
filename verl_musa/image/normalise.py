"""Rewrite an image so that equal content gives an equal id: one layer with fixed dates, and a config without a build's traces."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from verl_musa.image.base import EPOCH
from verl_musa.image.engine import Engine
from verl_musa.image.tree import CHUNK, MOUNTED, Listing, in_image, tar_entry, tar_path

KEPT = ("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels", "StopSignal",
        "Shell", "Healthcheck")  # fmt: skip
"""Keys of an image's config that decide how it runs."""

LAYER = "layer.tar"
_END = bytes(2 * tarfile.BLOCKSIZE)


def normalise(engine: Engine, reference: str, log: Path) -> Listing:
    """Replace the image behind ``reference`` by its normalised form; return what that holds.

    The listing is of the very bytes that the engine takes in: it refuses a layer with another digest than the config names.

    Raises:
        ImageError: the engine cannot give the image out or take it in.
    """
    built = engine.inspect(reference)
    with tempfile.TemporaryDirectory(prefix="normalise-", dir=log.parent) as folder:
        target = Path(folder, "normal.tar")
        with target.open("wb") as out, engine.export(reference) as stream:
            listing = _rewrite(stream, out, reference, built)
        engine.load(target, log)
    if engine.image_id(reference) != built["Id"]:
        engine.remove(built["Id"])  # nameless now, and as large as the other
    return listing


def _rewrite(stream: IO[bytes], out: IO[bytes], reference: str, built: Mapping[str, Any]) -> Listing:
    """Write an image with the file system that comes out of ``stream``. Its gigabytes pass once."""
    out.write(_head(LAYER, 0))  # its size is known once it is written
    layer = _Hashed(out)
    listing = _copy(stream, layer)
    out.write(_padding(layer.size))
    settled = json.dumps(_settled(built, layer.digest.hexdigest()), sort_keys=True).encode()
    config = f"{hashlib.sha256(settled).hexdigest()}.json"
    listed = json.dumps([{"Config": config, "RepoTags": [reference], "Layers": [LAYER]}]).encode()
    for name, content in ((config, settled), ("manifest.json", listed)):
        out.write(_head(name, len(content)) + content + _padding(len(content)))
    out.write(_END)
    out.seek(0)
    out.write(_head(LAYER, layer.size))
    return listing


class _Hashed:
    """Writes on and keeps the size and digest of what passed."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self.digest.update(data)
        self.size += len(data)


def _copy(stream: IO[bytes], layer: _Hashed) -> Listing:
    """Copy a tar without what differs between builds, in its order, which is that of the names."""
    found: Listing = {}
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
        for member in tar:
            path = tar_path(member)
            if not path or path in MOUNTED or path.startswith("dev/"):
                continue  # of the container that it was read out of
            layer.write(_plain(member, path).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            content = hashlib.sha256()
            source = tar.extractfile(member) if member.isreg() else None
            while source is not None and (data := source.read(CHUNK)):
                layer.write(data)
                content.update(data)
            layer.write(_padding(member.size if member.isreg() else 0))
            entry = tar_entry(member, content.hexdigest(), found)
            if entry and in_image(path):
                found[path] = entry
    layer.write(_END)
    return found


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


def _settled(built: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """The config without what differs between two builds, or builders, of the same content."""
    moment = datetime.fromtimestamp(int(EPOCH), UTC).isoformat().replace("+00:00", "Z")
    return {
        "architecture": built["Architecture"],
        "os": built["Os"],
        "config": {key: built["Config"][key] for key in KEPT if built["Config"].get(key)},
        "created": moment,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": moment, "created_by": "verl-musa image build"}],
    }


def _head(name: str, size: int) -> bytes:
    """The header of a file, always of one block."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, int(EPOCH), 0o644
    return entry.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
