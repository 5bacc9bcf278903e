from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from verl_musa.checkpoint.safetensors_folder import open_weights
from verl_musa.checkpoint.safetensors_writer import SafetensorsWriter
from verl_musa.errors import CheckpointError

MakeModel = Callable[..., Path]


def write_header(file: Path, header: object, data: bytes = b"") -> None:
    raw = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


def test_places_are_those_that_the_library_reads(make_model: MakeModel) -> None:
    folder = make_model(shards=3)
    weights = open_weights(folder)
    assert len(weights.files) == 3
    for entry in weights.entries.values():
        raw = (folder / entry.file).read_bytes()[entry.start : entry.start + entry.nbytes]
        with safe_open(folder / entry.file, "pt") as library:
            expected = library.get_tensor(entry.name)
        assert entry.dtype == "BF16"
        assert torch.equal(torch.frombuffer(bytearray(raw), dtype=torch.bfloat16).view(entry.shape), expected)


def test_entries_are_in_the_order_on_disk(make_model: MakeModel) -> None:
    entries = list(open_weights(make_model(shards=2)).entries.values())
    assert entries == sorted(entries, key=lambda entry: (entry.file, entry.start))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), "no weight file at all"),
        (("pytorch_model.bin",), "pytorch_model.bin"),
        (("a.safetensors",), "a.safe"),
    ],
)
def test_folders_in_another_layout(tmp_path: Path, names: tuple[str, ...], found: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match="no safetensors weights") as caught:
        open_weights(tmp_path)
    assert found in str(caught.value.found)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": []}', "{}"])
def test_a_damaged_index(make_model: MakeModel, content: str) -> None:
    folder = make_model(shards=2)
    (folder / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match="index of the weights cannot be read"):
        open_weights(folder)


def test_an_index_of_another_download(make_model: MakeModel) -> None:
    folder = make_model(shards=2)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text(encoding="utf-8"))
    first, *_, last = listed["weight_map"]
    listed["weight_map"][first] = listed["weight_map"][last]
    index.write_text(json.dumps(listed), encoding="utf-8")
    with pytest.raises(CheckpointError, match="lacks a tensor that the index puts there") as caught:
        open_weights(folder)
    assert first in str(caught.value.found)


def test_a_tensor_in_two_files(make_model: MakeModel) -> None:
    folder = make_model(shards=2)
    one, other = sorted(folder.glob("*.safetensors"))
    other.write_bytes(one.read_bytes())
    with pytest.raises(CheckpointError, match="lies in two files"):
        open_weights(folder)


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
        ({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        ({"x": [1]}, b""),
    ],
)
def test_a_damaged_header(tmp_path: Path, header: object, data: bytes) -> None:
    write_header(tmp_path / "model.safetensors", header, data)
    with pytest.raises(CheckpointError, match="its header is damaged"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"abc", struct.pack("<Q", 2**40) + b"{}", struct.pack("<Q", 2) + b"{"]
)
def test_files_of_another_format(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        open_weights(tmp_path)


def test_a_longer_file(make_model: MakeModel) -> None:
    folder = make_model(shards=1)
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(CheckpointError, match="longer than its header says"):
        open_weights(folder)


def test_the_writer_s_files_are_those_of_the_library(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.arange(4, dtype=torch.float64)}
    file = tmp_path / "model.safetensors"
    with SafetensorsWriter(file, {"a": ("F32", (3, 5)), "b": ("F64", (4,))}) as writer:
        for name, tensor in tensors.items():
            writer.write(name, memoryview(tensor.view(-1).view(torch.uint8).numpy()))
    found = load_file(file)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert open_weights(tmp_path).entries["a"].start % 8 == 0


def test_the_writer_takes_only_what_was_announced(tmp_path: Path) -> None:
    announced = {"a": ("F32", (1,)), "b": ("F32", (1,))}
    with (
        pytest.raises(ValueError, match="expected a with 4"),
        SafetensorsWriter(tmp_path / "x", announced) as writer,
    ):
        writer.write("b", memoryview(bytes(4)))
    with (
        pytest.raises(ValueError, match="1 tensors were announced and not written"),
        SafetensorsWriter(tmp_path / "x", announced) as writer,
    ):
        writer.write("a", memoryview(bytes(4)))
