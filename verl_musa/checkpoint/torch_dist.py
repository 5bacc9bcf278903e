"""Writing the torch_dist format without torch, from tensors that stay in their source files.

Megatron-Core reads such a folder through ``torch.distributed.checkpoint``: ``.metadata`` says which box of which tensor
lies where in which ``__R_I.distcp`` file, ``metadata.json`` names the format and ``common.pt`` holds what is not a
tensor (nothing here). A box may have any size: the loader intersects boxes with what each rank needs.

The files are byte for byte those that torch's own ``FileSystemWriter`` makes of the same boxes (the tests compare them).
torch is imported only where numbers change their type, which is its arithmetic.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from verl_musa.checkpoint import torch_zip
from verl_musa.checkpoint.index import COMMON, FORMAT, FORMAT_FILE, METADATA, TORCH_NAMES
from verl_musa.checkpoint.mapping import Shape
from verl_musa.checkpoint.pieces import Piece
from verl_musa.checkpoint.safetensors_folder import COPY_AGAIN, ITEM_BYTES
from verl_musa.checkpoint.torch_pickle import INDEX_PROTOCOL, SAVE_PROTOCOL, Call, Global, Instance, dumps
from verl_musa.errors import CheckpointError
from verl_musa.fileio import write_atomic, write_json

BLOCK = 256 << 10
"""Bytes read, hashed and written at once: few enough to stay in the processor's cache between the three. Writes of 1 MiB
took the kernel up to twice as long."""

START_FLUSH = 32 << 20
"""Bytes after which the disk is told to begin, so that it works while the next ones are read."""

DROP_AFTER = 2 * START_FLUSH
"""Bytes after which what the disk has is given up, where the weights stream through a memory that cannot hold them."""

INDEX_VERSION = "1.0.0"
"""torch's name of the index's version."""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Written:
    """Where one object ended up: the loader's key, the box's first corner (None: no tensor), and its bytes."""

    key: str
    offset: Shape | None
    file: str
    start: int
    length: int


@dataclass
class Source:
    """The source files, and the checksum of every tensor read from them so far.

    Attributes:
        folder: where they lie.
        streamed: the weights are much of the host's memory: give up the pages of what is read and written, before the kernel
            has to look for some.
        hashes: by tensor's name; complete once all its pieces were read, in row order.
    """

    folder: Path
    streamed: bool = False
    hashes: dict[str, Any] = field(default_factory=dict)
    _buffer: bytearray = field(default_factory=lambda: bytearray(BLOCK))
    _open: dict[str, int] = field(default_factory=dict)

    def blocks(self, piece: Piece) -> Iterator[memoryview]:
        """Read a piece, block by block; each is valid until the next is asked for.

        Raises:
            CheckpointError: the file has become shorter.
        """
        part, entry = piece.part, piece.entry
        if entry is None:
            return
        row = entry.nbytes // entry.shape[0]
        place, stop = entry.start + part.start * row, entry.start + part.stop * row
        found = self.hashes.setdefault(entry.name, xxhash.xxh3_128())
        descriptor = self._descriptor(entry.file)
        whole = memoryview(self._buffer)
        while place < stop:
            count = os.preadv(descriptor, [whole[: min(BLOCK, stop - place)]], place)
            count -= count % ITEM_BYTES[entry.dtype]
            if count <= 0:
                raise CheckpointError(
                    "the weight file has become shorter while it was read",
                    where=str(self.folder / entry.file),
                    found=f"no byte {place:,}, in {entry.name}",
                    fix=COPY_AGAIN,
                )
            found.update(whole[:count])
            place += count
            yield whole[:count]
        if self.streamed:
            first = entry.start + part.start * row
            os.posix_fadvise(descriptor, first, stop - first, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _descriptor(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(self._open[name], 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return self._open[name]


class _Output:
    """One output file, which the disk begins to write while it grows."""

    def __init__(self, path: Path, *, streamed: bool) -> None:
        self._behind = DROP_AFTER if streamed else 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._flushed = 0
        self.end = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append."""
        left = memoryview(data)
        while left:
            count = os.write(self._descriptor, left)
            left = left[count:]
            self.end += count
        if self.end - self._flushed >= START_FLUSH:
            # Linux starts to write out what is dirty in a range that is not needed, and drops what is clean.
            first = max(0, self._flushed - self._behind)
            os.posix_fadvise(self._descriptor, first, self.end - first, os.POSIX_FADV_DONTNEED)
            self._flushed = self.end

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def write_unit(
    folder: Path,
    number: int,
    pieces: Sequence[Piece],
    source: Source,
    dtypes: dict[str, str],
    *,
    objects: Sequence[str] = (),
    progress: Progress = lambda _count: None,
) -> list[Written]:
    """Write one ``__NUMBER_0.distcp`` file; the caller flushes it.

    Args:
        folder: an existing folder.
        number: the unit's number, in the place where other writers put the rank's.
        pieces: the boxes.
        source: where their content is.
        dtypes: safetensors' name of the type to write, by key.
        objects: names of objects without content; they share one copy.
        progress: called with the bytes of each piece once it is written; a bar takes longer than a block.

    Returns:
        Where everything lies, for :func:`finish`.
    """
    name = f"__{number}_0.distcp"
    written = []
    output = _Output(folder / name, streamed=source.streamed)
    try:
        if objects:
            output.write(torch_zip.pickled(dumps([None], SAVE_PROTOCOL)))
            written = [Written(key, None, name, 0, output.end) for key in objects]
        for piece in pieces:
            start = output.end
            _write_piece(output, piece, source, dtypes[piece.part.key], progress)
            written.append(Written(piece.part.key, piece.part.offset, name, start, output.end - start))
    finally:
        output.close()
        source.close()
    return written


def _write_piece(output: _Output, piece: Piece, source: Source, dtype: str, progress: Progress) -> None:
    nbytes = piece.items * ITEM_BYTES[dtype]
    archive, head = torch_zip.begin_tensor(TORCH_NAMES[dtype], piece.part.sizes, nbytes)
    output.write(head)
    checksum = 0
    for block in _content(piece, source, dtype):
        checksum = zlib.crc32(block, checksum)
        output.write(block)
    output.write(archive.descriptor(checksum) + archive.close(has_data=True))
    progress(piece.source_bytes)


def _content(piece: Piece, source: Source, dtype: str) -> Iterator[bytes | memoryview]:
    """A piece's bytes as they are written."""
    if piece.entry is None:
        left = piece.items * ITEM_BYTES[dtype]
        while left:
            count = min(left, BLOCK)
            yield bytes(count)
            left -= count
    elif piece.entry.dtype == dtype:
        yield from source.blocks(piece)
    else:
        for block in source.blocks(piece):
            yield _cast(block, piece.entry.dtype, dtype)


def _cast(block: memoryview, before: str, after: str) -> memoryview:
    """The same numbers in another type."""
    import torch

    numbers = torch.frombuffer(block, dtype=getattr(torch, TORCH_NAMES[before]))
    return memoryview(numbers.to(getattr(torch, TORCH_NAMES[after])).view(torch.uint8).numpy())


def finish(
    folder: Path,
    written: Iterable[Written],
    boxes: dict[tuple[str, Shape], Shape],
    shapes: dict[str, Shape],
    dtypes: dict[str, str],
) -> None:
    """Write ``.metadata`` and ``common.pt``. What is left is :func:`seal`.

    Args:
        folder: where the units lie.
        written: what they hold.
        boxes: size of each box by key and first corner.
        shapes: global shape by key.
        dtypes: safetensors' name of the type, by key.
    """
    write_atomic(folder / METADATA, _index(written, boxes, shapes, dtypes))
    write_atomic(folder / COMMON, torch_zip.pickled(dumps({}, SAVE_PROTOCOL)))


def seal(folder: Path) -> None:
    """Write ``metadata.json``, which makes the folder a checkpoint."""
    write_json(folder / FORMAT_FILE, FORMAT)


_METADATA = "torch.distributed.checkpoint.metadata"
_TENSOR = Global(_METADATA, "TensorStorageMetadata")
_PROPERTIES = Global(_METADATA, "TensorProperties")
_BOX = Global(_METADATA, "ChunkStorageMetadata")
_OBJECT = Global(_METADATA, "BytesStorageMetadata")
_KEY = Global(_METADATA, "MetadataIndex")
_PLACE = Global("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_STRIDED = Call(Global("torch.serialization", "_get_layout"), ("torch.strided",), shared=True)
_CONTIGUOUS = Call(Global(_METADATA, "_MEM_FORMAT_ENCODING"), (0,), shared=True)
# Pickle writes one text that is two objects twice, and torch's class and torch's types have a text each.
_SIZE = Global(b"torch".decode(), "Size")
_TYPES = {name: Global("torch", torch_name) for name, torch_name in TORCH_NAMES.items()}


def _index(
    written: Iterable[Written],
    boxes: dict[tuple[str, Shape], Shape],
    shapes: dict[str, Shape],
    dtypes: dict[str, str],
) -> bytes:
    """The index as torch pickles it."""

    def size(shape: Shape) -> Call:
        return Call(_SIZE, ((*shape,),))  # a tuple of its own: torch's sizes make one each time

    # Interned, so that the bytes do not depend on whether a name comes from here or from the journal of a resumption.
    described = {
        sys.intern(key): Instance(
            _TENSOR,
            {
                "properties": Instance(
                    _PROPERTIES, (_TYPES[dtypes[key]], _STRIDED, False, _CONTIGUOUS, False)
                ),
                "size": size(shape),
                "chunks": [],
            },
        )
        for key, shape in shapes.items()
    }
    places: dict[Instance, Instance] = {}
    for item in sorted(written, key=lambda item: (item.key, item.offset or ())):
        key = sys.intern(item.key)
        state: dict[str, Any] = {"fqn": key, "index": None}
        if item.offset is None:
            described[key] = Instance(_OBJECT)
        else:
            box = {"offsets": size(item.offset), "sizes": size(boxes[key, item.offset])}
            described[key].state["chunks"].append(Instance(_BOX, box))
            state["offset"] = size(item.offset)
        place = {"relative_path": sys.intern(item.file), "offset": item.start, "length": item.length}
        places[Instance(_KEY, state)] = Instance(_PLACE, place)
    about = Instance(
        Global(_METADATA, "StorageMeta"),
        {"checkpoint_id": None, "save_id": None, "load_id": None, "modules": []},
    )
    whole = {
        "state_dict_metadata": described,
        "planner_data": None,
        "storage_data": places,
        "storage_meta": about,
        "version": INDEX_VERSION,
    }
    return dumps(Instance(Global(_METADATA, "Metadata"), whole), INDEX_PROTOCOL)
