"""Reading a torch_dist checkpoint, ours or one that training wrote, without Megatron-Core and without a process group."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import torch

from verl_musa.checkpoint.index import LAYERS, Box, Stored, read_index
from verl_musa.checkpoint.mapping import Shape
from verl_musa.errors import CheckpointError

CACHE_BYTES = 512 << 20
"""Boxes kept in memory, since a fused box serves several Hugging Face tensors; the largest one is always kept."""

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""torch's types by safetensors' names."""


class TorchDistFolder:
    """A torch_dist checkpoint.

    Args:
        path: the folder with ``metadata.json`` and ``.metadata``.

    Raises:
        CheckpointError: not such a folder, incomplete, or its files do not fit its metadata.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = read_index(path)
        self._cache: OrderedDict[tuple[str, Shape], torch.Tensor] = OrderedDict()
        self._cached = 0
        self._places: dict[str, dict[Shape, list[Box]]] = {}

    @property
    def tensors(self) -> dict[str, Stored]:
        """Every tensor by key."""
        return self.index.tensors

    @property
    def objects(self) -> list[str]:
        """Keys of what is not a tensor."""
        return self.index.objects

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
        result = torch.empty(sizes, dtype=self.dtype(key))
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
        found: torch.dtype = getattr(torch, self.tensors[key].dtype)
        return found

    def _near(self, key: str, offset: Shape, sizes: Shape) -> Iterator[Box]:
        """The stored boxes that may meet a wanted one: a stacked tensor of experts has tens of thousands.

        They are kept by the first corner along their leading axes of size 1, that is by layer and expert.
        """
        if key not in self._places:
            places: dict[Shape, list[Box]] = {}
            for chunk in self.tensors[key].boxes:
                places.setdefault(chunk.offsets[: _leading_ones(chunk.sizes)], []).append(chunk)
            self._places[key] = places
        for depth in range(len(sizes)):
            if depth and sizes[depth - 1] != 1:
                for place, chunks in self._places[key].items():
                    if len(place) >= depth and place[: depth - 1] == offset[: depth - 1]:
                        yield from chunks
                return
            yield from self._places[key].get(offset[:depth], ())

    def _chunk(self, key: str, chunk: Box) -> torch.Tensor:
        place = (key, chunk.offsets)
        if place in self._cache:
            self._cache.move_to_end(place)
            return self._cache[place]
        info = self.index.places[place]
        with (self.path / info.file).open("rb") as stream:
            stream.seek(info.start)
            raw = io.BytesIO(stream.read(info.length))
        try:
            tensor = torch.load(raw, map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(
                "a stored tensor cannot be read",
                where=f"{self.path / info.file} at byte {info.start:,}",
                found=f"{key} {list(chunk.offsets)}: {type(error).__name__}: {error}",
                fix="copy the checkpoint again",
            ) from error
        tensor = tensor.reshape(chunk.sizes)
        self._cache[place] = tensor
        self._cached += tensor.nbytes
        while self._cached > CACHE_BYTES and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1].nbytes
        return tensor


def _leading_ones(sizes: Shape) -> int:
    """How many leading axes of a box have size 1; the last axis never counts."""
    count = 0
    while count < len(sizes) - 1 and sizes[count] == 1:
        count += 1
    return count


def _overlap(offset: Shape, sizes: Shape, chunk: Box) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where a stored box and a wanted one meet: slices of the stored one and of the wanted one; None for nowhere."""
    inner, outer = [], []
    for want, size, have, length in zip(offset, sizes, chunk.offsets, chunk.sizes, strict=True):
        first, last = max(want, have), min(want + size, have + length)
        if first >= last:
            return None
        inner.append(slice(first - have, last - have))
        outer.append(slice(first - want, last - want))
    return tuple(inner), tuple(outer)
