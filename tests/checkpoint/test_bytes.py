"""What is written without torch is byte for byte what torch's own writer makes of the same boxes."""

from __future__ import annotations

import dataclasses
import io
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from verl_musa.checkpoint import ToMcore, plan, to_mcore, torch_zip
from verl_musa.checkpoint.mapping import extra_state_keys
from verl_musa.checkpoint.pieces import Piece
from verl_musa.checkpoint.to_mcore import Plan
from verl_musa.checkpoint.torch_pickle import dumps

MakeModel = Callable[..., Path]
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Writer(FileSystemWriter):
    """torch's, without the folder's name and a random id in the index."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()


class Planner(SavePlanner):
    """One item a box."""

    def __init__(self, ready: Plan, unit: int) -> None:
        self.ready, self.unit = ready, unit
        self.pieces = {(piece.part.key, piece.part.offset): piece for piece in ready.units[unit]}

    def set_up_planner(self, *_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError

    def create_global_plan(self, _all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        raise NotImplementedError

    def finish_plan(self, _new_plan: SavePlan) -> SavePlan:
        raise NotImplementedError

    def create_local_plan(self) -> SavePlan:
        items = [] if self.unit else [WriteItem(MetadataIndex(self.objects[0]), WriteItemType.BYTE_IO)]
        return SavePlan([*items, *map(self._item, self.pieces.values())])

    @property
    def objects(self) -> list[str]:
        return list(extra_state_keys(self.ready.spec, self.ready.target))

    def _item(self, piece: Piece) -> WriteItem:
        part = piece.part
        data = TensorWriteData(
            ChunkStorageMetadata(torch.Size(part.offset), torch.Size(part.sizes)),
            TensorProperties(dtype=DTYPES[self.ready.dtypes[part.key]]),
            torch.Size(self.ready.shapes[part.key]),
        )
        return WriteItem(MetadataIndex(part.key, part.offset), WriteItemType.SHARD, tensor_data=data)

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        index = write_item.index
        if index.offset is None:
            stream = io.BytesIO()
            torch.save([None], stream)
            return stream
        piece = self.pieces[index.fqn, tuple(index.offset)]
        part, entry = piece.part, piece.entry
        dtype = DTYPES[self.ready.dtypes[part.key]]
        if entry is None:
            return torch.zeros(part.sizes, dtype=dtype)
        raw = bytearray((self.ready.weights.path / entry.file).read_bytes())
        row = entry.nbytes // entry.shape[0]
        start, count = entry.start + part.start * row, (part.stop - part.start) * row
        numbers = torch.frombuffer(raw, dtype=torch.uint8, count=count, offset=start)
        return numbers.clone().view(DTYPES[entry.dtype]).view(part.sizes).to(dtype)


def reference(ready: Plan, folder: Path) -> Path:
    """Write a plan with torch alone."""
    folder.mkdir()
    results: list[WriteResult] = []
    for unit in range(len(ready.units)):
        writer, planner = Writer(folder, per_thread_copy_ahead=0), Planner(ready, unit)
        empty = SavePlan([])
        plans = writer.prepare_global_plan([*([empty] * unit), planner.create_local_plan()])
        results += writer.write_data(plans[unit], planner).wait()
    shared = next(result for result in results if result.index.offset is None)
    for name in Planner(ready, 0).objects[1:]:
        results.append(WriteResult(MetadataIndex(name), shared.size_in_bytes, shared.storage_data))
    results = [
        WriteResult(
            MetadataIndex(sys.intern(result.index.fqn), result.index.offset),
            result.size_in_bytes,
            dataclasses.replace(
                result.storage_data, relative_path=sys.intern(result.storage_data.relative_path)
            ),
        )
        for result in results
    ]
    results.sort(key=lambda result: (result.index.fqn, tuple(result.index.offset or ())))
    Writer(folder).finish(Metadata(described(ready, results)), [results])
    return folder


def described(ready: Plan, results: list[WriteResult]) -> dict[str, Any]:
    """The index's first half."""
    sizes = {(piece.part.key, piece.part.offset): piece.part.sizes for unit in ready.units for piece in unit}
    found: dict[str, Any] = {
        sys.intern(key): TensorStorageMetadata(
            TensorProperties(dtype=DTYPES[ready.dtypes[key]]), torch.Size(shape), []
        )
        for key, shape in ready.shapes.items()
    }
    for result in results:
        key, offset = result.index.fqn, result.index.offset
        if offset is None:
            found[key] = BytesStorageMetadata()
        else:
            box = ChunkStorageMetadata(torch.Size(offset), torch.Size(sizes[key, tuple(offset)]))
            found[key].chunks.append(box)
    return found


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"pad_vocab": 64}])
@pytest.mark.parametrize("streamed", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["dense", "tied", "moe"])
def test_the_files_are_those_that_torch_writes(
    *,
    make_model: MakeModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    streamed: float,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr("verl_musa.checkpoint.torch_dist.BLOCK", 104)
    monkeypatch.setattr("verl_musa.checkpoint.torch_dist.START_FLUSH", 1000)
    monkeypatch.setattr(sys.modules[ToMcore.__module__], "STREAMED_SHARE", streamed)
    asked = ToMcore(source=make_model(kind), output=tmp_path / "ours", **options)
    expected, found = reference(plan(asked), tmp_path / "theirs"), to_mcore(asked)
    files = sorted(path.name for path in expected.glob("*.distcp"))
    assert files == sorted(path.name for path in found.glob("*.distcp"))
    for name in files:
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name
    assert (found / ".metadata").read_bytes() == (expected / ".metadata").read_bytes()
    stream = io.BytesIO()
    torch.save({}, stream)
    assert (found / "common.pt").read_bytes() == stream.getvalue()


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("sizes", [(5,), (1, 3), (1, 1, 300), (2, 1, 70000), (1, 256, 300), (65536, 3)])
def test_an_archive_is_the_one_that_torch_saves(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    tensor = torch.randn(sizes).to(dtype)
    raw = bytes(tensor.view(-1).view(torch.uint8).numpy())
    archive, head = torch_zip.begin_tensor(str(dtype).removeprefix("torch."), sizes, len(raw))
    assert (archive.end - len(raw)) % torch_zip.ALIGNMENT == 0
    ours = head + raw + archive.descriptor(zlib.crc32(raw)) + archive.close(has_data=True)
    stream = io.BytesIO()
    torch.save(tensor, stream)
    assert ours == stream.getvalue()
    assert archive.end == len(ours)


@pytest.mark.parametrize("value", [[None], {}])
def test_an_object_is_the_one_that_torch_saves(value: Any) -> None:
    stream = io.BytesIO()
    torch.save(value, stream)
    assert torch_zip.pickled(dumps(value, 2)) == stream.getvalue()


def test_an_archive_of_4_gib_is_refused() -> None:
    with pytest.raises(ValueError, match="4 GiB or more"):
        torch_zip.begin_tensor("bfloat16", (1 << 31, 1), 1 << 32)
