"""The torch_dist format, written by torch's own ``FileSystemWriter`` with tensors that stay in their source files.

Megatron-Core reads such a folder through ``torch.distributed.checkpoint``: ``.metadata`` says which box of which
tensor lies where in which ``__R_I.distcp`` file, ``metadata.json`` names the format and ``common.pt`` holds what is
not a tensor (nothing here). A box may have any size: the loader intersects boxes with what each rank needs. Import
this module only where torch may be: it needs torch, safetensors files and no process group.
"""

from __future__ import annotations

import io
import mmap
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
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

from verl_musa.checkpoint.mapping import Shape
from verl_musa.checkpoint.pieces import Piece
from verl_musa.fileio import write_atomic, write_json

FORMAT = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""Content of ``metadata.json``, as Megatron-Core 0.16.1 and 0.18.0 write and expect it."""

METADATA = ".metadata"
FORMAT_FILE = "metadata.json"
COMMON = "common.pt"

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""torch's types by safetensors' names."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Written:
    """Where one object ended up: the loader's key, the box's first corner (None: no tensor), and its bytes."""

    key: str
    offset: Shape | None
    file: str
    start: int
    length: int


class FolderWriter(FileSystemWriter):
    """torch's writer, without the folder's name and a random id in the metadata: the same input gives the same bytes."""

    def __init__(self, folder: Path) -> None:
        # Nothing is copied ahead (that is for devices), and the caller decides when to wait for the disk.
        super().__init__(folder, sync_files=False, per_thread_copy_ahead=0)

    def storage_meta(self) -> StorageMeta | None:
        """Say nothing about the folder."""
        return StorageMeta()


class PiecePlanner(SavePlanner):
    """Hands torch's writer one piece after the other, straight from the mapped source file.

    Args:
        pieces: what to write, in order.
        source: folder of the source files.
        shapes: global shape by key.
        dtypes: type to write, by key.
        progress: called with the bytes of each piece once it is written.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        source: Path,
        shapes: dict[str, Shape],
        dtypes: dict[str, torch.dtype],
        progress: Progress,
    ) -> None:
        self.pieces = {(piece.part.key, piece.part.offset): piece for piece in pieces}
        self.shapes = shapes
        self.dtypes = dtypes
        self.hashes: dict[str, Any] = {}
        self._source = source
        self._maps: dict[str, mmap.mmap] = {}
        self._progress = progress
        self._last: tuple[str, int, int] | None = None

    def set_up_planner(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing to set up: the pieces are the plan."""

    def create_local_plan(self) -> SavePlan:
        """Return one write item a piece."""
        return SavePlan([self._item(piece) for piece in self.pieces.values()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return the plans as they are; :func:`finish` makes the metadata."""
        return all_plans, Metadata({})

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return a piece's content; the pages of the one before are given back first."""
        self.release()
        index = write_item.index
        if index.offset is None:
            return empty_object()
        piece = self.pieces[index.fqn, tuple(index.offset)]
        part, entry = piece.part, piece.entry
        dtype = self.dtypes[part.key]
        if entry is None:
            return torch.zeros(part.sizes, dtype=dtype)
        row = entry.nbytes // entry.shape[0]
        start, count = entry.start + part.start * row, (part.stop - part.start) * row
        raw = torch.frombuffer(self._map(entry.file), dtype=torch.uint8, count=count, offset=start)
        self.hashes.setdefault(entry.name, xxhash.xxh3_128()).update(raw.numpy())
        self._last = (entry.file, start, count)
        tensor = raw.view(DTYPES[entry.dtype]).view(part.sizes)
        return tensor.to(dtype)

    def release(self) -> None:
        """Count the piece before as written and give its pages back, so that memory stays bounded."""
        if self._last is None:
            return
        file, start, count = self._last
        first = start - start % mmap.PAGESIZE
        self._maps[file].madvise(mmap.MADV_DONTNEED, first, start + count - first)
        self._progress(count)
        self._last = None

    def _map(self, name: str) -> mmap.mmap:
        if name not in self._maps:
            with (self._source / name).open("rb") as stream:
                # A private map: torch wants writable memory, and nothing here writes.
                self._maps[name] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[name]

    def _item(self, piece: Piece) -> WriteItem:
        part = piece.part
        chunk = ChunkStorageMetadata(torch.Size(part.offset), torch.Size(part.sizes))
        data = TensorWriteData(
            chunk, TensorProperties(dtype=self.dtypes[part.key]), torch.Size(self.shapes[part.key])
        )
        return WriteItem(MetadataIndex(part.key, part.offset), WriteItemType.SHARD, tensor_data=data)


def empty_object() -> io.BytesIO:
    """Return what Megatron-Core saves for a module without state: a list of one None."""
    stream = io.BytesIO()
    torch.save([None], stream)
    return stream


def write_unit(
    folder: Path, number: int, planner: PiecePlanner, objects: Sequence[str] = ()
) -> list[Written]:
    """Write one ``__NUMBER_0.distcp`` file.

    Args:
        folder: an existing folder.
        number: the unit's number, in the place where other writers put the rank's.
        planner: the pieces.
        objects: names of objects without content; they share one copy.

    Returns:
        Where everything lies, for :func:`finish`.
    """
    writer = FolderWriter(folder)
    plan = planner.create_local_plan()
    if objects:
        plan.items.insert(0, WriteItem(MetadataIndex(objects[0]), WriteItemType.BYTE_IO))
    empty = SavePlan([])
    plans = writer.prepare_global_plan([*([empty] * number), plan])
    results = writer.write_data(plans[number], planner).wait()
    planner.release()
    found = []
    for result in results:
        info = result.storage_data
        offset = None if result.index.offset is None else tuple(result.index.offset)
        names = [result.index.fqn] if offset is not None else objects
        found += [Written(name, offset, info.relative_path, info.offset, info.length) for name in names]
    return found


def finish(
    folder: Path,
    written: Iterable[Written],
    boxes: dict[tuple[str, Shape], Shape],
    shapes: dict[str, Shape],
    dtypes: dict[str, torch.dtype],
) -> None:
    """Write ``.metadata``, ``common.pt`` and, last, ``metadata.json``, which makes the folder a checkpoint.

    Args:
        folder: where the units lie.
        written: what they hold.
        boxes: size of each box by key and first corner.
        shapes: global shape by key.
        dtypes: type by key.
    """
    # Interned, because pickle writes one text that is two objects twice: the bytes must not depend on a resumption.
    described: dict[str, Any] = {
        sys.intern(key): TensorStorageMetadata(TensorProperties(dtype=dtypes[key]), torch.Size(shape), [])
        for key, shape in shapes.items()
    }
    results = []
    for item in sorted(written, key=lambda item: (item.key, item.offset or ())):
        key = sys.intern(item.key)
        if item.offset is None:
            described[key] = BytesStorageMetadata()
        else:
            size = torch.Size(boxes[key, item.offset])
            described[key].chunks.append(ChunkStorageMetadata(torch.Size(item.offset), size))
        place = _StorageInfo(sys.intern(item.file), item.start, item.length)
        results.append(WriteResult(MetadataIndex(key, item.offset), item.length, place))
    writer = FolderWriter(folder)
    writer.sync_files = True
    writer.finish(Metadata(described), [results])
    common = io.BytesIO()
    torch.save({}, common)
    write_atomic(folder / COMMON, common.getvalue())
    write_json(folder / FORMAT_FILE, FORMAT)
