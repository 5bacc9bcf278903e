from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from verl_musa.errors import ImageError
from verl_musa.image.engine import Engine
from verl_musa.image.normalise import normalise

Entries = list[tuple[str, bytes | None]]
BASE: Entries = [("etc", None), ("etc/base", b"base"), ("etc/gone", b"gone")]


def layer(entries: Entries, mtime: int) -> bytes:
    """A layer; no content makes a folder, ``->`` before a name makes a hard link to it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.mtime, entry.mode = mtime, 0o755 if content is None else 0o644
            if content is None:
                entry.type = tarfile.DIRTYPE
            elif content.startswith(b"->"):
                entry.type, entry.linkname = tarfile.LNKTYPE, content[2:].decode()
            else:
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content or b"") if entry.isreg() else None)
    return out.getvalue()


class Store(Engine):
    """Keeps one saved image, as the engine would give it out and take it in."""

    def __init__(self, layers: list[bytes], created: str) -> None:
        super().__init__("docker", "0", "legacy")
        digests = [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "created": created,
            "container": created,
            "config": {"Env": ["A=1"], "Hostname": created, "Image": created},
            "history": [{"created": created}] * len(layers),
            "rootfs": {"type": "layers", "diff_ids": [*digests]},
        }
        self.__dict__.update(layers=layers, config=config, loaded={}, digests=digests)

    def inspect(self, reference: str) -> dict[str, Any]:
        assert reference == "base"
        return {"RootFS": {"Layers": self.__dict__["digests"][:1]}}

    def save(self, reference: str, tar: Path) -> None:
        layers: list[bytes] = self.__dict__["layers"]
        names = [f"{index:064}/layer.tar" for index in range(len(layers))]
        manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": names}]
        files = dict(zip(names, layers, strict=True))
        files |= {
            "config.json": json.dumps(self.__dict__["config"]).encode(),
            "manifest.json": json.dumps(manifest).encode(),
        }
        with tarfile.open(tar, "w") as out:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                out.addfile(entry, io.BytesIO(content))

    def load(self, tar: Path, log: Path) -> str:
        assert log.parent.is_dir()
        with tarfile.open(tar) as found:
            read = {member.name: found.extractfile(member).read() for member in found if member.isreg()}  # type: ignore[union-attr]
        self.__dict__["loaded"] = read
        return "image"

    def image_id(self, reference: str) -> str:
        assert reference == "image"
        if not self.__dict__["loaded"]:
            return "as built"
        return str(json.loads(self.__dict__["loaded"]["manifest.json"])[0]["Config"])

    def remove(self, reference: str) -> bool:
        assert reference == "as built"
        return True

    @property
    def top(self) -> dict[str, bytes | None]:
        """The last layer of what was loaded; and its digest is the one that the config names."""
        read = self.__dict__["loaded"]
        manifest = json.loads(read["manifest.json"])[0]
        last = read[manifest["Layers"][-1]]
        config = json.loads(read[manifest["Config"]])
        assert config["rootfs"]["diff_ids"][-1] == f"sha256:{hashlib.sha256(last).hexdigest()}"
        with tarfile.open(fileobj=io.BytesIO(last)) as tar:
            found = {}
            for member in tar:
                stream = tar.extractfile(member) if member.isreg() else None
                found[member.name] = None if stream is None else stream.read()
            return found


def build(layers: list[Entries], mtime: int, tmp_path: Path) -> Store:
    store = Store([layer(BASE, 1), *(layer(entries, mtime) for entries in layers)], f"at {mtime}")
    normalise(store, "image", "base", tmp_path / "log")
    return store


def test_two_builds_of_the_same_content_get_the_same_id(tmp_path: Path) -> None:
    first = build([[("opt", None), ("opt/a", b"1"), ("opt/b", b"2")]], 100, tmp_path)
    second = build([[("opt", None), ("opt/b", b"2"), ("opt/a", b"1")]], 200, tmp_path)
    split = build([[("opt", None), ("opt/b", b"0")], [("opt/b", b"2"), ("opt/a", b"1")]], 300, tmp_path)
    assert first.image_id("image") == second.image_id("image") == split.image_id("image")
    other = build([[("opt", None), ("opt/a", b"1"), ("opt/b", b"3")]], 100, tmp_path)
    assert other.image_id("image") != first.image_id("image")


def test_what_the_image_runs_with_is_kept(tmp_path: Path) -> None:
    store = build([[("opt", None)]], 100, tmp_path)
    config = json.loads(store.__dict__["loaded"][store.image_id("image")])
    assert config["config"] == {"Env": ["A=1"], "Hostname": "", "Image": ""}
    assert "container" not in config


def test_files_that_a_later_layer_takes_away_are_gone(tmp_path: Path) -> None:
    store = build(
        [
            [("opt", None), ("opt/cache", None), ("opt/cache/x", b"x"), ("opt/keep", b"k")],
            [("opt/.wh.cache", b""), ("etc/.wh.gone", b"")],
        ],
        100,
        tmp_path,
    )
    assert "opt/cache/x" not in store.top
    assert store.top["opt/keep"] == b"k"
    assert "etc/.wh.gone" in store.top, "the base still has the file"


def test_an_opaque_folder_hides_what_was_below_it(tmp_path: Path) -> None:
    store = build(
        [[("opt", None), ("opt/x", b"x")], [("opt", None), ("opt/.wh..wh..opq", b""), ("opt/y", b"y")]],
        1,
        tmp_path,
    )
    assert "opt/x" not in store.top
    assert store.top["opt/y"] == b"y"
    assert "opt" in store.top


def test_a_hard_link_becomes_a_file_of_its_own(tmp_path: Path) -> None:
    store = build([[("opt", None), ("opt/a", b"1"), ("opt/b", b"->opt/a")]], 100, tmp_path)
    assert (store.top["opt/a"], store.top["opt/b"]) == (b"1", b"1")


def test_an_image_over_another_base_is_refused(tmp_path: Path) -> None:
    store = Store([layer(BASE, 1), layer([("opt", None)], 1)], "now")
    store.__dict__["config"]["rootfs"]["diff_ids"][0] = "sha256:other"
    with pytest.raises(ImageError, match="not laid over its base"):
        normalise(store, "image", "base", tmp_path / "log")
