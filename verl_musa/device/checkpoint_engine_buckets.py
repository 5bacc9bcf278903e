"""Weights packed into buckets of bytes, and taken out of them again; each bucket described by plain data.

A bucket is one contiguous byte tensor. Every piece in it starts at a multiple of ALIGN bytes, so that it can be viewed in
its own dtype whatever lies before it. A tensor that is larger than a bucket travels as several pieces.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

ALIGN = 64
# Words summed at a time by digest(): bounds its temporary memory to 2 x 8 bytes a word.
CHUNK_WORDS = 1 << 22
# Largest prime below 2^16: the weights of neighbouring words differ, and a weighted sum of a chunk fits 64 bits.
WEIGHTS = 65521


@dataclass(frozen=True)
class Piece:
    """One tensor, or a part of one, inside a bucket.

    Attributes:
        name: the tensor's name.
        dtype: its dtype without ``torch.``, e.g. ``bfloat16``.
        shape: of the whole tensor.
        offset: of the piece, in bytes from the bucket's start.
        size: of the piece, in bytes.
        start: of the piece, in bytes from the tensor's start.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    start: int

    @property
    def whole(self) -> int:
        """Bytes of the whole tensor."""
        size = dtype_of(self.dtype).itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True)
class Header:
    """What a receiver must know before a bucket comes.

    Attributes:
        pieces: in the order in which they lie in the bucket.
        length: of the bucket, in bytes; 0 for one that is not sent (a model without weights).
        last: whether no bucket follows.
        digest: of the bucket's bytes, None where checksums are off.
    """

    pieces: tuple[Piece, ...]
    length: int
    last: bool
    digest: int | None

    def dumps(self) -> str:
        """The header as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Header:
        """Read what dumps() wrote."""
        fields = json.loads(text)
        pieces = tuple(Piece(**{**piece, "shape": tuple(piece["shape"])}) for piece in fields.pop("pieces"))
        return cls(pieces=pieces, **fields)


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of that name.

    Raises:
        ValueError: torch has no such dtype.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(  # noqa: TRY004  (a name, not an object of a wrong type)
            f"found dtype {name!r}; expected the name of a torch dtype, e.g. bfloat16"
        )
    return found


def align(offset: int) -> int:
    """``offset`` rounded up to a multiple of ALIGN."""
    return -(-offset // ALIGN) * ALIGN


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as (n,) uint8; a copy only where it is not contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def digest(data: torch.Tensor) -> int:
    """A 64-bit checksum of bytes, computed where they lie; sensitive to order.

    The sum over 32-bit words of word x weight, modulo 2^64, the weights running from 1 to WEIGHTS and again.

    Args:
        data: (n,) uint8, n a multiple of 4, contiguous.
    """
    words = data.view(torch.int32)
    total = 0
    for start in range(0, words.numel(), CHUNK_WORDS):
        part = words[start : start + CHUNK_WORDS].to(torch.int64)
        weights = torch.arange(start, start + part.numel(), dtype=torch.int64, device=data.device)
        total += int((part * (weights.remainder_(WEIGHTS) + 1)).sum().item())
    return total % (1 << 64)


class Packer:
    """Fills one bucket after the other; the buffer is reused, so a bucket must have left before the next is filled.

    Args:
        size: largest bucket, in bytes.
        device: where the buckets lie.
        checksum: whether to compute digests.
    """

    def __init__(self, size: int, device: torch.device, *, checksum: bool) -> None:
        if size < ALIGN:
            raise ValueError(f"found a bucket of {size} bytes; expected at least {ALIGN}")
        self._room = size // ALIGN * ALIGN
        # Zeroed once: the gaps between pieces travel and are summed as well.
        self._buffer = torch.zeros(self._room, dtype=torch.uint8, device=device)
        self._checksum = checksum
        self._pieces: list[Piece] = []
        self._used = 0

    async def buckets(
        self, weights: AsyncIterator[tuple[str, torch.Tensor]]
    ) -> AsyncIterator[tuple[Header, torch.Tensor]]:
        """Yield (header, (length,) uint8) for all of ``weights``; the last header says so, even if it is the only one."""
        async for name, tensor in weights:
            for piece, part in self._parts(name, tensor):
                if self._used + align(piece.size) > self._room:
                    yield self._close(last=False)
                self._put(piece, part)
        yield self._close(last=True)

    def release(self) -> None:
        """Free the buffer, whoever still holds a view of it: an error's traceback does."""
        self._buffer.untyped_storage().resize_(0)

    def _parts(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[Piece, torch.Tensor]]:
        data = as_bytes(tensor)
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        # max: an empty tensor is one piece of no bytes, so that it arrives too.
        for start in range(0, max(data.numel(), 1), self._room):
            part = data[start : start + self._room]
            yield Piece(name, dtype, shape, 0, part.numel(), start), part

    def _put(self, piece: Piece, part: torch.Tensor) -> None:
        self._buffer[self._used : self._used + piece.size].copy_(part)
        self._pieces.append(replace(piece, offset=self._used))
        self._used = align(self._used + piece.size)

    def _close(self, *, last: bool) -> tuple[Header, torch.Tensor]:
        bucket = self._buffer[: self._used]
        found = digest(bucket) if self._checksum and self._used else None
        header = Header(tuple(self._pieces), self._used, last, found)
        self._pieces, self._used = [], 0
        return header, bucket


class Unpacker:
    """Takes whole tensors out of buckets, putting those together that came in several."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._tensor: torch.Tensor | None = None
        self._filled = 0

    def tensors(self, header: Header, bucket: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) of each tensor that this bucket completes; small ones are views of the bucket.

        Raises:
            ValueError: pieces do not follow each other, or the stream ended within a tensor.
        """
        for piece in header.pieces:
            data = bucket[piece.offset : piece.offset + piece.size]
            if self._tensor is None and piece.size == piece.whole:
                yield piece.name, data.view(dtype_of(piece.dtype)).view(piece.shape)
            elif (found := self._join(piece, data)) is not None:
                yield piece.name, found
        if header.last and self._tensor is not None:
            raise ValueError(f"found the last bucket; expected the rest of {self._name!r} in it")

    def _join(self, piece: Piece, data: torch.Tensor) -> torch.Tensor | None:
        if self._tensor is None:
            self._name, self._filled = piece.name, 0
            self._tensor = torch.empty(piece.shape, dtype=dtype_of(piece.dtype), device=data.device)
        if piece.name != self._name or piece.start != self._filled:
            raise ValueError(
                f"found bytes {piece.start} and on of {piece.name!r}; expected {self._filled} and on of {self._name!r}"
            )
        self._tensor.reshape(-1).view(torch.uint8)[piece.start : piece.start + piece.size].copy_(data)
        self._filled += piece.size
        if self._filled < piece.whole:
            return None
        done, self._tensor, self._name = self._tensor, None, None
        return done


def summary(header: Header) -> dict[str, Any]:
    """What one bucket adds to a sync's figures: tensors completed in it, and its bytes."""
    return {
        "tensors": sum(piece.start + piece.size == piece.whole for piece in header.pieces),
        "bytes": sum(piece.size for piece in header.pieces),
    }
