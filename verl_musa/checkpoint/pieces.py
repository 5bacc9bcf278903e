"""Cutting a conversion into boxes, and the boxes into output files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from verl_musa.checkpoint.mapping import Mapped, Part
from verl_musa.checkpoint.safetensors_folder import Entry, WeightFolder

UNIT_BYTES = 1 << 30
"""Source bytes that go into one output file: what an interruption loses at most, for each job."""

PIECE_BYTES = 128 << 20
"""Longest run of rows written as one box; larger tensors become several, so that memory and a rank's reads stay small."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One box to write.

    Attributes:
        part: the box and the rows that fill it.
        entry: the tensor that has the rows; None for zeros.
    """

    part: Part
    entry: Entry | None

    @property
    def source_bytes(self) -> int:
        """Bytes that are read."""
        if self.entry is None:
            return 0
        return (self.part.stop - self.part.start) * (self.entry.nbytes // self.entry.shape[0])

    @property
    def items(self) -> int:
        """Numbers that are written."""
        return math.prod(self.part.sizes)


Unit = tuple[Piece, ...]


def units_of(weights: WeightFolder, mapped: Iterable[Mapped], zeros: Iterable[Part]) -> tuple[Unit, ...]:
    """Put the pieces in the order in which they lie on disk, and start a new output file for each source file.

    A tensor's pieces stay together, so that its checksum needs no second pass.

    Args:
        weights: the source.
        mapped: the tensors to convert; others of the source are left out.
        zeros: boxes of zeros, which go into the first output file.
    """
    by_name = {tensor.name: tensor for tensor in mapped}
    units: list[list[Piece]] = []
    file, size = "", 0
    for entry in weights.entries.values():
        tensor = by_name.get(entry.name)
        if tensor is None:
            continue
        if not units or entry.file != file or size + entry.nbytes > UNIT_BYTES:
            units.append([])
            file, size = entry.file, 0
        size += entry.nbytes
        row = entry.nbytes // entry.shape[0]
        units[-1] += [Piece(part, entry) for whole in tensor.parts for part in split(whole, row)]
    units[0] += [Piece(part, None) for whole in zeros for part in split(whole, 4 * whole.sizes[-1])]
    return tuple(tuple(unit) for unit in units)


def split(part: Part, row_bytes: int) -> list[Part]:
    """Cut a part into runs of rows of at most :data:`PIECE_BYTES`."""
    rows = max(1, PIECE_BYTES // row_bytes)
    total = part.stop - part.start
    if total <= rows:
        return [part]
    axis = part.sizes.index(total)
    found = []
    for start in range(part.start, part.stop, rows):
        stop = min(start + rows, part.stop)
        offset, sizes = list(part.offset), list(part.sizes)
        offset[axis] += start - part.start
        sizes[axis] = stop - start
        found.append(
            dataclasses.replace(part, start=start, stop=stop, offset=tuple(offset), sizes=tuple(sizes))
        )
    return found
