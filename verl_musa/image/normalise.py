"""Rewrite an image so that equal content gives an equal id: what was laid over the base becomes one layer with fixed dates and order.

The base's own layers stay as they are. The result has the config of the build, but for its dates and its build history.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from verl_musa.errors import ImageError
from verl_musa.image.base import EPOCH
from verl_musa.image.engine import Engine

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


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
        with tarfile.open(saved) as tar:
            _rewrite(tar, target, reference, len(below), below)
        saved.unlink()
        engine.load(target, log)
    normal = engine.image_id(reference)
    if normal != built:
        engine.remove(built)  # nameless now, and as large as the other
    return normal


def _rewrite(tar: tarfile.TarFile, target: Path, reference: str, count: int, below: Sequence[str]) -> None:
    manifest = json.loads(_read(tar, "manifest.json"))[0]
    config = json.loads(_read(tar, manifest["Config"]))
    if config["rootfs"]["diff_ids"][:count] != list(below):
        raise ImageError("the image is not laid over its base", where=reference, expected=", ".join(below))
    with tempfile.TemporaryFile(dir=target.parent) as merged:
        digest = _merge(tar, manifest["Layers"][count:], merged, target.parent)
        config["rootfs"]["diff_ids"] = [*below, f"sha256:{digest}"]
        settled = json.dumps(_settled(config, count), sort_keys=True).encode()
        names = [f"{index}/layer.tar" for index in range(count + 1)]
        with tarfile.open(target, "w") as out:
            for name, layer in zip(names, manifest["Layers"][:count], strict=False):
                member = tar.getmember(layer)
                _add(out, name, member.size, _stream(tar, layer))
            size = merged.seek(0, io.SEEK_END)
            merged.seek(0)
            _add(out, names[-1], size, merged)
            config_name = f"{hashlib.sha256(settled).hexdigest()}.json"
            _add(out, config_name, len(settled), io.BytesIO(settled))
            listed = json.dumps([{"Config": config_name, "RepoTags": [reference], "Layers": names}]).encode()
            _add(out, "manifest.json", len(listed), io.BytesIO(listed))


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


def _merge(tar: tarfile.TarFile, layers: Sequence[str], merged: IO[bytes], place: Path) -> str:
    """Lay ``layers`` over each other into one sorted tar; return its digest."""
    with tempfile.TemporaryDirectory(prefix="layers-", dir=place) as folder, ExitStack() as stack:
        opened = []
        for index, layer in enumerate(layers):
            file = Path(folder, f"{index}.tar")
            with file.open("wb") as out:
                shutil.copyfileobj(_stream(tar, layer), out, 1 << 20)
            opened.append(stack.enter_context(tarfile.open(file)))
        chosen = dict(_top_entries(opened))
        with tarfile.open(fileobj=merged, mode="w", format=tarfile.PAX_FORMAT) as whole:
            for path in sorted(chosen):
                source, member = chosen[path]
                whole.addfile(_plain(member, path), source.extractfile(member) if member.isreg() else None)
    merged.seek(0)
    digest = hashlib.sha256()
    while piece := merged.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _top_entries(
    opened: Sequence[tarfile.TarFile],
) -> Iterator[tuple[str, tuple[tarfile.TarFile, tarfile.TarInfo]]]:
    """Each path's last entry. A path that a later layer takes away leaves its whiteout, since the base may have it."""
    found: dict[str, tuple[tarfile.TarFile, tarfile.TarInfo]] = {}
    for source in opened:
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
            kept = _as_file(member, source.getmember(member.linkname)) if member.islnk() else member
            found[path] = (source, kept)
    yield from found.items()


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
    return _stream(tar, name).read()


def _stream(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    member = tar.getmember(name)
    if member.issym():  # the engine links a layer that occurs twice
        member = tar.getmember(str(Path(name).parent / member.linkname))
    stream = tar.extractfile(member)
    if stream is None:
        raise ImageError("not a file in the saved image", where=name)
    return stream


def _add(out: tarfile.TarFile, name: str, size: int, stream: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, int(EPOCH), 0o644
    out.addfile(entry, stream)
