"""Reading checkpoints of any arrangement, and refusing those that are damaged or not to be trusted."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from verl_musa.checkpoint import ToMcore, to_mcore
from verl_musa.checkpoint.torch_dist_reader import TorchDistFolder
from verl_musa.errors import CheckpointError

MakeModel = Callable[..., Path]
# torch says that it works without a process group, which is what is asked of it.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
NORM = "decoder.final_layernorm.weight"
QKV = "decoder.layers.self_attention.linear_qkv.weight"


@pytest.fixture
def converted(make_model: MakeModel) -> Path:
    source = make_model("moe")
    return to_mcore(ToMcore(source=source, output=source.with_name("out")))


def test_any_box_of_any_tensor(converted: Path, mcore_of: Callable[[str], Any]) -> None:
    folder = TorchDistFolder(converted)
    whole = mcore_of("moe")
    assert folder.tensors.keys() == whole.keys()
    for key, tensor in whole.items():
        assert torch.equal(folder.read(key, (0,) * tensor.dim(), tuple(tensor.shape)), tensor)
        inner = tuple(slice(size // 3, size // 3 + max(1, size // 2)) for size in tensor.shape)
        offset = tuple(part.start for part in inner)
        expected = tensor[inner]
        assert torch.equal(folder.read(key, offset, tuple(expected.shape)), expected), key


def test_boxes_of_several_layers(tmp_path: Path) -> None:
    tensor = torch.arange(4.0 * 3 * 2).view(4, 3, 2)
    dcp.save({"x": tensor}, storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}', encoding="utf-8")
    folder = TorchDistFolder(tmp_path)
    assert torch.equal(folder.read("x", (2, 1, 0), (1, 2, 2)), tensor[2:3, 1:])
    assert torch.equal(folder.read("x", (1, 0, 1), (2, 3, 1)), tensor[1:3, :, 1:])


def test_memory_is_bounded(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_musa.checkpoint.torch_dist_reader.CACHE_BYTES", 600)
    folder = TorchDistFolder(converted)
    folder.read(QKV, (0, 0, 0), (2, 64, 16))
    assert 0 < folder._cached <= 600
    assert folder._cached == sum(tensor.nbytes for tensor in folder._cache.values())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metadata.json", "not a Megatron-Core distributed checkpoint"),
        (".metadata", "the checkpoint has no index"),
        ("__0_0.distcp", "a file of the checkpoint is missing"),
    ],
)
def test_a_missing_file(converted: Path, name: str, said: str) -> None:
    (converted / name).unlink()
    with pytest.raises(CheckpointError, match=said):
        TorchDistFolder(converted)


def test_a_truncated_file(converted: Path) -> None:
    file = converted / "__1_0.distcp"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="is truncated"):
        TorchDistFolder(converted)


def test_damaged_content(converted: Path) -> None:
    file = converted / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))
    folder = TorchDistFolder(converted)
    key = next(
        key for (key, offset), place in folder.index.places.items() if place.file == file.name and offset
    )
    sizes = folder.tensors[key].shape
    with pytest.raises(CheckpointError, match="a stored tensor cannot be read"):
        folder.read(key, (0,) * len(sizes), sizes)


def test_another_format(converted: Path) -> None:
    (converted / "metadata.json").write_text('{"sharded_backend": "zarr"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="not in the torch_dist format"):
        TorchDistFolder(converted)


def test_tensors_that_are_not_there(converted: Path) -> None:
    folder = TorchDistFolder(converted)
    with pytest.raises(CheckpointError, match="lacks a tensor"):
        folder.read("decoder.layers.mlp.linear_fc1.weight", (0, 0, 0), (1, 1, 1))


def change_index(folder: Path, edit: Callable[[Metadata], None]) -> None:
    index = dcp.FileSystemReader(folder).read_metadata()
    edit(index)
    (folder / ".metadata").write_bytes(pickle.dumps(index))


def test_a_box_that_was_never_saved(converted: Path) -> None:
    change_index(converted, lambda index: index.state_dict_metadata[QKV].chunks.pop())
    with pytest.raises(CheckpointError, match="does not hold the whole of a tensor"):
        TorchDistFolder(converted).read(QKV, (0, 0, 0), (2, 64, 16))


def test_a_box_without_a_place(converted: Path) -> None:
    def edit(index: Metadata) -> None:
        del index.storage_data[next(key for key in index.storage_data if key.fqn == NORM)]

    change_index(converted, edit)
    with pytest.raises(CheckpointError, match="index is incomplete"):
        TorchDistFolder(converted)


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch evil",)


class Sneaky:
    def __reduce__(self) -> tuple[Any, tuple[()]]:
        from torch.distributed.checkpoint import filesystem

        return filesystem.uuid.uuid4, ()


@pytest.mark.parametrize("content", [pickle.dumps(Evil()), pickle.dumps(Sneaky()), b"", b"\x80\x05X"])
def test_an_index_runs_nothing(
    converted: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (converted / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="index cannot be read"):
        TorchDistFolder(converted)
    assert not (tmp_path / "evil").exists()


def test_what_megatron_puts_into_an_index_is_let_through(converted: Path) -> None:
    raw = (converted / ".metadata").read_bytes()
    # GLOBAL opcodes by hand: Megatron-Core is not importable here.
    marker = b"cmegatron.core.dist_checkpointing.strategies.torch\nMCoreMetadata\n0"
    (converted / ".metadata").write_bytes(marker + raw)
    assert NORM in TorchDistFolder(converted).tensors


def test_a_copy_elsewhere_works(converted: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(converted, tmp_path / "elsewhere")
    shutil.rmtree(converted)
    assert TorchDistFolder(copy).read(NORM, (0,), (16,)).shape == (16,)
