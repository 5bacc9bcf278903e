"""Reading a torch_dist checkpoint, ours or one that training wrote, without Megatron-Core and without a process group."""

from __future__ import annotations

import io
import json
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

from verl_musa.checkpoint.mapping import Shape
from verl_musa.checkpoint.torch_dist import COMMON, FORMAT, FORMAT_FILE, METADATA
from verl_musa.errors import CheckpointError

CACHE_BYTES = 512 << 20
"""Boxes kept in memory, since a fused box serves several Hugging Face tensors; the largest one is always kept."""

LAYERS = "decoder.layers."

_SAFE = {
    "builtins": {"set", "frozenset", "list", "dict", "tuple"},
    "collections": {"OrderedDict", "defaultdict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
}


class _Unpickler(pickle.Unpickler):
    """Reads ``.metadata``, which is a pickle, without running what an unknown author may have put there.

    Allowed are torch's own classes of the format and plain containers; classes of other packages (Megatron-Core puts
    its plans there in some versions) become empty stand-ins.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the class, a stand-in, or refuse.

        Raises:
            pickle.UnpicklingError: anything else, in particular functions.
        """
        if name in _SAFE.get(module, ()):
            return super().find_class(module, name)
        if (module, name) in {("torch", "Size"), ("torch.serialization", "_get_layout")}:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return super().find_class(module, name)
        if module.startswith("torch.distributed.checkpoint.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        if module.startswith("megatron.core.dist_checkpointing."):
            return type(name, (), {})
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint's metadata")


class TorchDistFolder:
    """A torch_dist checkpoint.

    Args:
        path: the folder with ``metadata.json`` and ``.metadata``.

    Raises:
        CheckpointError: not such a folder, incomplete, or its files do not fit its metadata.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, TensorStorageMetadata] = {}
        self.objects: list[str] = []
        self._check_format()
        metadata = self._read_metadata()
        for key, value in metadata.state_dict_metadata.items():
            if isinstance(value, TensorStorageMetadata):
                self.tensors[key] = value
            else:
                self.objects.append(key)
        self._storage: dict[Any, Any] = metadata.storage_data or {}
        self._cache: OrderedDict[tuple[str, Shape], torch.Tensor] = OrderedDict()
        self._cached = 0
        self._places: dict[str, dict[Shape, list[ChunkStorageMetadata]]] = {}
        self._check_files()

    def read(self, key: str, offset: Shape, sizes: Shape) -> torch.Tensor:
        """Return the box of ``sizes`` at ``offset`` of a tensor, put together from the boxes that are stored.

        Raises:
            CheckpointError: no such tensor, or a part of the box is stored nowhere.
        """
        if key not in self.tensors and key.startswith(LAYERS):
            # One tensor a layer, as Megatron-Core saves models whose layers are not alike.
            key, offset, sizes = f"{LAYERS}{offset[0]}.{key.removeprefix(LAYERS)}", offset[1:], sizes[1:]
        if key not in self.tensors:
            raise CheckpointError(
                "the checkpoint lacks a tensor",
                where=str(self.path),
                found=f"no {key}",
                fix="was it made from this model, with the same --spec?",
            )
        result = torch.empty(sizes, dtype=self.tensors[key].properties.dtype)
        filled = 0
        for chunk in self._near(key, offset, sizes):
            overlap = _overlap(offset, sizes, chunk)
            if overlap is None:
                continue
            inner, outer = overlap
            part = self._chunk(key, chunk)[inner]
            result[outer] = part
            filled += part.numel()
        if filled != result.numel():
            raise CheckpointError(
                "the checkpoint does not hold the whole of a tensor",
                where=str(self.path),
                found=f"{filled:,} of {result.numel():,} numbers of {key} at {list(offset)}",
                fix="the checkpoint is damaged or was saved by fewer ranks than it was trained on",
            )
        return result

    def dtype(self, key: str) -> torch.dtype:
        """The type of a tensor, whether the layers are stacked or not."""
        if key not in self.tensors:
            key = f"{LAYERS}0.{key.removeprefix(LAYERS)}"
        return self.tensors[key].properties.dtype

    def _near(self, key: str, offset: Shape, sizes: Shape) -> Iterator[ChunkStorageMetadata]:
        """The stored boxes that may meet a wanted one: a stacked tensor of experts has tens of thousands.

        They are kept by the first corner along their leading axes of size 1, that is by layer and expert.
        """
        if key not in self._places:
            places: dict[Shape, list[ChunkStorageMetadata]] = {}
            for chunk in self.tensors[key].chunks:
                places.setdefault(tuple(chunk.offsets[: _leading_ones(chunk.sizes)]), []).append(chunk)
            self._places[key] = places
        for depth in range(len(sizes)):
            if depth and sizes[depth - 1] != 1:
                for place, chunks in self._places[key].items():
                    if len(place) >= depth and place[: depth - 1] == offset[: depth - 1]:
                        yield from chunks
                return
            yield from self._places[key].get(offset[:depth], ())

    def _chunk(self, key: str, chunk: ChunkStorageMetadata) -> torch.Tensor:
        place = (key, tuple(chunk.offsets))
        if place in self._cache:
            self._cache.move_to_end(place)
            return self._cache[place]
        info = self._storage[MetadataIndex(key, chunk.offsets)]
        with (self.path / info.relative_path).open("rb") as stream:
            stream.seek(info.offset)
            raw = io.BytesIO(stream.read(info.length))
        try:
            tensor = torch.load(raw, map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(
                "a stored tensor cannot be read",
                where=f"{self.path / info.relative_path} at byte {info.offset:,}",
                found=f"{key} {list(chunk.offsets)}: {type(error).__name__}: {error}",
                fix="copy the checkpoint again",
            ) from error
        tensor = tensor.reshape(tuple(chunk.sizes))
        self._cache[place] = tensor
        self._cached += tensor.nbytes
        while self._cached > CACHE_BYTES and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1].nbytes
        return tensor

    def _check_format(self) -> None:
        file = self.path / FORMAT_FILE
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                "not a Megatron-Core distributed checkpoint",
                where=str(file),
                found=getattr(error, "strerror", None) or str(error),
                expected="a folder with metadata.json, .metadata, common.pt and .distcp files",
                fix="name the folder that holds these files; an interrupted conversion ends in .partial",
            ) from error
        if found.get("sharded_backend") != FORMAT["sharded_backend"]:
            raise CheckpointError(
                "this checkpoint is not in the torch_dist format",
                where=str(file),
                found=f"sharded_backend {found.get('sharded_backend')!r}",
                expected="torch_dist",
                fix="save it with the torch_dist format",
            )

    def _read_metadata(self) -> Any:
        file = self.path / METADATA
        try:
            with file.open("rb") as stream:
                return _Unpickler(stream).load()
        except FileNotFoundError as error:
            raise CheckpointError(
                "the checkpoint has no index",
                where=str(file),
                found="no such file",
                fix="copy the checkpoint again, hidden files too",
            ) from error
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError) as error:
            raise CheckpointError(
                "the checkpoint's index cannot be read",
                where=str(file),
                found=str(error),
                fix="copy the checkpoint again; if it comes from someone else, do not trust it",
            ) from error

    def _check_files(self) -> None:
        """Compare the index with the files, by their sizes.

        Raises:
            CheckpointError: a file is missing or too short, or a box has no place in a file.
        """
        for key, described in self.tensors.items():
            for chunk in described.chunks:
                if MetadataIndex(key, chunk.offsets) not in self._storage:
                    raise CheckpointError(
                        "the checkpoint's index is incomplete",
                        where=str(self.path / METADATA),
                        found=f"{key} {list(chunk.offsets)} is in no file",
                        fix="copy the checkpoint again",
                    )
        ends: dict[str, int] = {}
        for info in self._storage.values():
            ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
        for name, end in sorted(ends.items()):
            file = self.path / name
            size = file.stat().st_size if file.is_file() else None
            if size is None or size < end:
                raise CheckpointError(
                    "a file of the checkpoint is missing"
                    if size is None
                    else "a file of the checkpoint is truncated",
                    where=str(file),
                    found="no such file" if size is None else f"{size:,} bytes",
                    expected=f"at least {end:,} bytes",
                    fix="copy the checkpoint again",
                )

    def files(self) -> Iterator[Path]:
        """The files that the format is made of, whether or not they are there."""
        yield from (self.path / name for name in (FORMAT_FILE, METADATA, COMMON))
        yield from (self.path / name for name in sorted({i.relative_path for i in self._storage.values()}))


def _leading_ones(sizes: Shape) -> int:
    """How many leading axes of a box have size 1; the last axis never counts."""
    count = 0
    while count < len(sizes) - 1 and sizes[count] == 1:
        count += 1
    return count


def _overlap(
    offset: Shape, sizes: Shape, chunk: ChunkStorageMetadata
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where a stored box and a wanted one meet: slices of the stored one and of the wanted one; None for nowhere."""
    inner, outer = [], []
    for want, size, have, length in zip(offset, sizes, chunk.offsets, chunk.sizes, strict=True):
        first, last = max(want, have), min(want + size, have + length)
        if first >= last:
            return None
        inner.append(slice(first - have, last - have))
        outer.append(slice(first - want, last - want))
    return tuple(inner), tuple(outer)
