from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import pytest

from verl_musa.run import manifest
from verl_musa.run.manifest import MANIFEST, Manifests, file_facts, verify, write_manifest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    actor = tmp_path / "global_step_2" / "actor"
    actor.mkdir(parents=True)
    with zipfile.ZipFile(actor / "model.pt", "w") as archive:
        archive.writestr("data", "weights" * 100)
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (actor / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"12345678")
    (actor.parent / "data.pt").write_bytes(b"state")
    return actor.parent


def test_untouched_files_hold(checkpoint: Path) -> None:
    write_manifest(checkpoint)
    assert verify(checkpoint) == manifest.Verdict("", hashed=True)
    assert set(json.loads((checkpoint / MANIFEST).read_text())["files"]) == {
        "actor/model.pt",
        "actor/model.safetensors",
        "data.pt",
    }


def test_each_kind_of_damage_is_told(checkpoint: Path) -> None:
    write_manifest(checkpoint)
    whole = (checkpoint / "data.pt").read_bytes()
    (checkpoint / "data.pt").write_bytes(b"stat!")
    assert "data.pt is not what was written" in verify(checkpoint).wrong
    (checkpoint / "data.pt").write_bytes(b"stat")
    assert verify(checkpoint).wrong == "data.pt has 4 bytes and had 5"
    (checkpoint / "data.pt").unlink()
    assert verify(checkpoint).wrong == "data.pt is missing"
    (checkpoint / "data.pt").write_bytes(whole)
    assert verify(checkpoint).wrong == ""
    (checkpoint / MANIFEST).write_text("{")
    assert "is damaged" in verify(checkpoint).wrong


def test_without_hashes_the_files_are_read_and_must_have_their_ends(checkpoint: Path) -> None:
    assert verify(checkpoint) == manifest.Verdict("", hashed=False)
    weights = checkpoint / "actor" / "model.pt"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-30])
    assert verify(checkpoint) == manifest.Verdict("actor/model.pt is cut off", hashed=False)
    weights.write_bytes(whole)
    tensors = checkpoint / "actor" / "model.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1])
    assert verify(checkpoint).wrong == "actor/model.safetensors is cut off"
    tensors.write_bytes(whole[:12])
    assert verify(checkpoint).wrong == "actor/model.safetensors is cut off"


def test_large_files_are_sampled_with_their_size(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(3 * manifest.BLOCK))
    before = file_facts(path, largest_whole=manifest.BLOCK)
    assert before["how"] == "64 samples"
    with path.open("r+b") as stream:
        stream.seek(2 * manifest.BLOCK)
        stream.write(b"x")
    assert file_facts(path, largest_whole=manifest.BLOCK)["sha256"] != before["sha256"]


def test_every_finished_checkpoint_is_hashed_once(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(manifest, "write_manifest", lambda path: written.append(path.name))
    finished: list[Path] = []
    hashes = Manifests(lambda: finished, lambda _: None)
    hashes.tend()
    finished.append(checkpoint)
    hashes.tend()
    hashes.finish(timeout_s=10)
    assert written == ["global_step_2"]


def test_what_cannot_be_hashed_is_told_unless_it_is_gone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(manifest, "write_manifest", fails)
    told: list[str] = []
    hashes = Manifests(lambda: [checkpoint, checkpoint.parent / "global_step_4"], told.append)
    hashes.finish(timeout_s=10)
    assert told == ["no hashes of global_step_2: disk full"]
