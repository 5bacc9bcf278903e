"""Writing one safetensors file tensor by tensor: the library's own writer wants all of a file's tensors in memory."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from verl_musa.checkpoint.mapping import Shape
from verl_musa.checkpoint.safetensors_folder import ITEM_BYTES

ALIGNMENT = 8
"""The header's length is a multiple of it, as the format's own writer does, so that data is aligned."""


class SafetensorsWriter:
    """A file whose tensors are written in the order in which they were announced.

    Args:
        file: the file to write.
        tensors: name -> (safetensors' name of the type, shape).
    """

    def __init__(self, file: Path, tensors: Mapping[str, tuple[str, Shape]]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, (dtype, shape) in tensors.items():
            start, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % ALIGNMENT)
        self._left = [
            (name, math.prod(shape) * ITEM_BYTES[dtype]) for name, (dtype, shape) in tensors.items()
        ]
        self._left.reverse()
        self._stream = file.open("wb")
        self._stream.write(struct.pack("<Q", len(raw)) + raw)

    def write(self, name: str, data: memoryview) -> None:
        """Write the next tensor's bytes.

        Raises:
            ValueError: it is not this tensor's turn, or its size is not what was announced.
        """
        expected = self._left.pop()
        if expected != (name, data.nbytes):
            raise ValueError(f"{name} with {data.nbytes} bytes; expected {expected[0]} with {expected[1]}")
        self._stream.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stream:
            if kind is None:
                if self._left:
                    raise ValueError(f"{len(self._left)} tensors were announced and not written")
                self._stream.flush()
                os.fsync(self._stream.fileno())
