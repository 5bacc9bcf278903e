"""The zip archive that ``torch.save`` makes of one tensor or a small object, written as a stream and without torch.

An archive has a pickle that describes the object, the tensor's bytes, and four small records; each record starts at a
multiple of 64 bytes. The bytes are those of torch 2.13, which the tests compare; every torch since 1.6 reads them.
"""

from __future__ import annotations

import functools
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_musa.checkpoint.mapping import Shape
from verl_musa.checkpoint.torch_pickle import SAVE_PROTOCOL, Call, Global, Persistent, dumps

ALIGNMENT = 64
LIMIT = 0xFFFFFFFF
"""Archives of 4 GiB and more need wider fields; no box is that large."""

_FLAGS = 0x0808  # checksum and size follow the data; names are UTF-8
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_DESCRIPTOR = struct.Struct("<4sIII")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
_MADE_BY, _NEEDED = 0x031E, 45

DATA = "data/0"
_BEFORE = ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little"))
_AFTER = (("version", b"3\n"),)
_ID = ".data/serialization_id"
_NAMES_HASH = {True: "15728199511854643026", False: "02908468677762923104"}
"""First half of the archive's id, a hash of its records' names: with a tensor's data, and without."""

_STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
}


@dataclass
class Archive:
    """The records of one archive; offsets count from its own start.

    Attributes:
        end: bytes so far.
        records: name, checksum, size and offset of each.
        combined: all checksums in one, which goes into the archive's id.
    """

    end: int = 0
    records: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    combined: int = 0

    def copy(self) -> Archive:
        """An archive that goes on from here."""
        return Archive(self.end, list(self.records), self.combined)

    def header(self, name: str, size: int) -> bytes:
        """The header of a record of ``size`` bytes; its data must follow, then :meth:`descriptor`."""
        path = f"archive/{name}".encode()
        start = self.end + _LOCAL.size + len(path) + 4
        padding = -start % ALIGNMENT
        if start + padding + size >= LIMIT:
            raise ValueError(f"{name} has {size:,} bytes: an archive of 4 GiB or more")
        self.records.append((path, 0, size, self.end))
        self.end = start + padding + size
        extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        return _LOCAL.pack(b"PK\x03\x04", 0, _FLAGS, 0, 0, 0, 0, 0, 0, len(path), len(extra)) + path + extra

    def descriptor(self, checksum: int) -> bytes:
        """What follows the data of the record that was begun last."""
        path, _, size, offset = self.records.pop()
        self.records.append((path, checksum, size, offset))
        seed = self.combined
        mixed = (checksum + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & 0xFFFFFFFFFFFFFFFF
        self.combined = seed ^ mixed
        self.end += _DESCRIPTOR.size
        return _DESCRIPTOR.pack(b"PK\x07\x08", checksum, size, size)

    def record(self, name: str, data: bytes) -> bytes:
        """A whole record."""
        return self.header(name, len(data)) + data + self.descriptor(zlib.crc32(data))

    def close(self, *, has_data: bool) -> bytes:
        """The records after the data, and the directory."""
        last = b"".join(self.record(name, data) for name, data in _AFTER)
        identity = f"{_NAMES_HASH[has_data]}{self.combined:020d}"
        last += self.record(_ID, identity.encode())
        entries = b"".join(
            _CENTRAL.pack(
                b"PK\x01\x02", 0, 0, _FLAGS, 0, 0, 0, checksum, size, size, len(path), 0, 0, 0, 0, 0, offset
            )
            + path
            for path, checksum, size, offset in self.records
        )
        count, start, size = len(self.records), self.end, len(entries)
        end64 = _END64.pack(b"PK\x06\x06", 44, _MADE_BY, _NEEDED, 0, 0, count, count, size, start)
        locator = _LOCATOR64.pack(b"PK\x06\x07", 0, start + size, 1)
        end = _END.pack(b"PK\x05\x06", 0, 0, count, count, size, start, 0)
        directory = entries + end64 + locator + end
        self.end += len(directory)
        return last + directory


def pickled(data: bytes) -> bytes:
    """The whole archive of an object without tensors, by its pickle."""
    archive = Archive()
    head = archive.record("data.pkl", data) + b"".join(archive.record(*record) for record in _BEFORE)
    return head + archive.close(has_data=False)


def begin_tensor(dtype: str, sizes: Shape, nbytes: int) -> tuple[Archive, bytes]:
    """The archive of one contiguous tensor up to its first byte.

    Args:
        dtype: torch's name of its type.
        sizes: its shape.
        nbytes: its size in bytes.

    Returns:
        The archive, which goes on with the data, ``descriptor`` and ``close``; and its bytes so far.
    """
    archive, head = _begin(dtype, sizes, nbytes)
    return archive.copy(), head


@functools.lru_cache(maxsize=256)
def _begin(dtype: str, sizes: Shape, nbytes: int) -> tuple[Archive, bytes]:
    archive = Archive()
    head = archive.record("data.pkl", _tensor_pickle(dtype, sizes))
    head += b"".join(archive.record(*record) for record in _BEFORE)
    head += archive.header(DATA, nbytes)
    return archive, head


def _tensor_pickle(dtype: str, sizes: Sequence[int]) -> bytes:
    """Calls torch's function that makes a tensor of a storage, which the archive keeps as ``data/0``."""
    strides = tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    storage = ("storage", Global("torch", _STORAGES[dtype]), "0", "cpu", math.prod(sizes))
    hooks = Call(Global("collections", "OrderedDict"), ())
    arguments = (Persistent(storage), 0, tuple(sizes), strides, False, hooks)
    return dumps(Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments), SAVE_PROTOCOL)
