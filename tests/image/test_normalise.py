from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from verl_musa.image.engine import Engine
from verl_musa.image.normalise import normalise
from verl_musa.image.tree import list_tar

Entries = dict[str, bytes | str | None]
"""Name -> content of a file, ``->`` target of a hard link, or nothing for a folder."""

CONTENT: Entries = {"opt": None, "opt/a": b"1", "opt/b": b"2" * 1500, "opt/c": "opt/a", "var": None, "var/log": None, "var/log/x": b"x"}  # fmt: skip
OF_THE_CONTAINER: Entries = {".dockerenv": b"", "dev": None, "dev/console": b"", "etc": None, "etc/hostname": b"", "etc/hosts": b""}  # fmt: skip


def file_system(entries: Entries, mtime: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.mtime, entry.mode, entry.uname = mtime, 0o755 if content is None else 0o644, f"user{mtime}"
            entry.pax_headers = {"atime": f"{mtime}.5", "SCHILY.xattr.security.capability": "x"}
            data = content if isinstance(content, bytes) else b""
            if content is None:
                entry.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.LNKTYPE, content
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@dataclass(frozen=True)
class Store(Engine):
    """Gives out one built image, and takes in the normalised one as an engine does: by the digests of its config."""

    content: bytes = b""
    config: dict[str, Any] = field(default_factory=dict)
    loaded: dict[str, Any] = field(default_factory=dict)

    def inspect(self, reference: str) -> dict[str, Any]:
        assert reference == "image:1"
        return {"Id": "as built", "Architecture": "amd64", "Os": "linux", "Config": self.config}

    @contextmanager
    def export(self, reference: str) -> Iterator[IO[bytes]]:
        assert reference == "image:1"
        yield io.BytesIO(self.content)

    def load(self, tar: Path, log: Path) -> str:
        assert log.parent.is_dir()
        with tarfile.open(tar) as found:
            read = {member.name: stream.read() for member in found if (stream := found.extractfile(member))}
        manifest = json.loads(read["manifest.json"])[0]
        assert manifest["RepoTags"] == ["image:1"]
        config = json.loads(read[manifest["Config"]])
        layers = [read[name] for name in manifest["Layers"]]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
        self.loaded.update(
            id=hashlib.sha256(read[manifest["Config"]]).hexdigest(), config=config, layer=layers[0]
        )
        return "image:1"

    def image_id(self, reference: str) -> str:
        assert reference == "image:1"
        return str(self.loaded["id"])

    def remove(self, reference: str) -> bool:
        assert reference == "as built"
        return self.loaded.setdefault("removed", True) is True


def normalised(tmp_path: Path, entries: Entries = CONTENT, mtime: int = 100, **config: Any) -> dict[str, Any]:
    store = Store("docker", "0", "legacy", file_system(entries, mtime), {"Env": ["A=1"], **config})
    listing = normalise(store, "image:1", tmp_path / "log")
    assert listing == list_tar(io.BytesIO(store.loaded["layer"])), "as if the loaded image were read"
    assert store.loaded["removed"]
    return {**store.loaded, "listing": listing}


def members(loaded: dict[str, Any]) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(loaded["layer"])) as tar:
        return {member.name: member for member in tar}


def test_two_builds_of_the_same_content_get_the_same_id(tmp_path: Path) -> None:
    first = normalised(tmp_path, Image="sha256:1", Hostname="one", Entrypoint=None)
    second = normalised(tmp_path, mtime=200, Image="sha256:2", Hostname="two")
    assert (first["id"], first["layer"]) == (second["id"], second["layer"])


@pytest.mark.parametrize("name", ["opt/a", "var/log/x"])
def test_other_content_gets_another_id(tmp_path: Path, name: str) -> None:
    assert normalised(tmp_path, {**CONTENT, name: b"3"})["id"] != normalised(tmp_path)["id"]


def test_only_what_the_image_runs_with_is_kept_of_its_config(tmp_path: Path) -> None:
    labels = {"org.opencontainers.image.title": "x"}
    config = normalised(tmp_path, Labels=labels, Cmd=["a"], User="", Image="x", AttachStdin=False)["config"]
    assert config["config"] == {"Env": ["A=1"], "Cmd": ["a"], "Labels": labels}
    assert config["created"] == "2025-01-01T00:00:00Z"
    assert set(config) == {"architecture", "os", "config", "created", "rootfs", "history"}


def test_dates_and_names_of_users_are_gone_and_capabilities_stay(tmp_path: Path) -> None:
    for member in members(normalised(tmp_path)).values():
        assert (member.mtime, member.uname) == (1735689600, "")
        assert member.pax_headers == {"SCHILY.xattr.security.capability": "x"}


def test_what_the_container_brought_is_not_part_of_the_image(tmp_path: Path) -> None:
    found = normalised(tmp_path, {**CONTENT, **OF_THE_CONTAINER})
    assert set(members(found)) == {*CONTENT, "dev", "etc"}


def test_the_listing_is_of_the_images_own_content(tmp_path: Path) -> None:
    listing = normalised(tmp_path)["listing"]
    assert set(listing) == {"opt", "opt/a", "opt/b", "opt/c", "var"}
    assert listing["opt/c"] == listing["opt/a"] == f"f 644 {hashlib.sha256(b'1').hexdigest()}"
