"""The index of a torch_dist checkpoint, read without torch: which box of which tensor lies where.

``.metadata`` is a pickle of torch's dataclasses. What it says is plain numbers and names, so that it is read into plain
records here; no class that an unknown author may have named is looked up.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from verl_musa.checkpoint.mapping import Shape
from verl_musa.errors import CheckpointError

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

LAYERS = "decoder.layers."
"""How keys of layers start."""

TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""torch's names of the types by those of safetensors."""

_TYPES = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"float": (64, 32, 16), "int": (64, 32, 16, 8), "uint": (64, 32, 16, 8)}.items()
    for bits in sizes
) | {"bfloat16", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"}
_SAFE = {
    "builtins": {"set", "frozenset", "list", "dict", "tuple"},
    "collections": {"OrderedDict", "defaultdict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
}
_FOREIGN = ("torch.distributed.checkpoint.", "megatron.core.dist_checkpointing.")


@dataclass(frozen=True, slots=True)
class Box:
    """One stored box of a tensor: its first corner and its size along each axis."""

    offsets: Shape
    sizes: Shape


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor: its type as torch names it, its global shape, and the boxes that it is stored in."""

    dtype: str
    shape: Shape
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a box or an object lies: the file's name, the first byte and how many."""

    file: str
    start: int
    length: int


@dataclass(frozen=True)
class Index:
    """What a checkpoint holds.

    Attributes:
        path: the folder.
        tensors: every tensor by key.
        objects: keys of what is not a tensor.
        places: where each box (by key and first corner) and each object (by key and None) lies.
    """

    path: Path
    tensors: dict[str, Stored] = field(default_factory=dict)
    objects: list[str] = field(default_factory=list)
    places: dict[tuple[str, Shape | None], Place] = field(default_factory=dict)

    def files(self) -> Iterator[Path]:
        """The files that the format is made of, whether or not they are there."""
        yield from (self.path / name for name in (FORMAT_FILE, METADATA, COMMON))
        yield from (self.path / name for name in sorted({place.file for place in self.places.values()}))


def read_index(path: Path) -> Index:
    """Read the index of the checkpoint in ``path``, and compare it with the files' sizes.

    Raises:
        CheckpointError: not such a folder, incomplete, or its files do not fit its index.
    """
    _check_format(path)
    index = _index(path, _read_metadata(path / METADATA))
    _check_places(index)
    _check_files(index)
    return index


class _Record:
    """Stands for an object of torch's classes: only what was saved of it."""

    state: Any = MappingProxyType({})

    def __init__(self, *_arguments: Any) -> None:
        """Arguments are those of enumerations, which nothing here asks for."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Reads an index without running what an unknown author may have put there.

    Objects of torch's and of Megatron-Core's classes become records, torch's types their names, and but for plain
    containers there is nothing else.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in, a plain container, or refuse.

        Raises:
            pickle.UnpicklingError: anything else, in particular functions.
        """
        if name in _SAFE.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("torch.serialization", "_get_layout"):
            return str
        if module == "torch" and name in _TYPES:
            return name
        if module.startswith(_FOREIGN) and name.isidentifier():
            return type(name, (_Record,), {})
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint's index")


def _read_metadata(file: Path) -> Any:
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
    except Exception as error:  # a damaged pickle raises whatever its opcodes happen to do
        raise _unreadable(file, str(error)) from error


def _unreadable(file: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "the checkpoint's index cannot be read",
        where=str(file),
        found=found,
        fix="copy the checkpoint again; if it comes from someone else, do not trust it",
    )


def _index(path: Path, metadata: Any) -> Index:
    """Turn the records into an index.

    Raises:
        CheckpointError: they are not those of an index.
    """
    index = Index(path)
    try:
        for key, value in metadata.state["state_dict_metadata"].items():
            if "chunks" not in value.state:
                index.objects.append(str(key))
                continue
            boxes = tuple(
                Box(_shape(chunk.state["offsets"]), _shape(chunk.state["sizes"]))
                for chunk in value.state["chunks"]
            )
            properties = value.state["properties"].state
            dtype = properties["dtype"] if isinstance(properties, dict) else properties[0]
            index.tensors[str(key)] = Stored(str(dtype), _shape(value.state["size"]), boxes)
        for place, info in (metadata.state["storage_data"] or {}).items():
            offset = place.state.get("offset")
            where = (str(place.state["fqn"]), None if offset is None else _shape(offset))
            state = info.state
            index.places[where] = Place(
                str(state["relative_path"]), int(state["offset"]), int(state["length"])
            )
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise _unreadable(path / METADATA, f"not an index: {type(error).__name__}: {error}") from error
    return index


def _shape(value: Any) -> Shape:
    return tuple(int(size) for size in value)


def _check_format(path: Path) -> None:
    file = path / FORMAT_FILE
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
    backend = found.get("sharded_backend") if isinstance(found, dict) else None
    if backend != FORMAT["sharded_backend"]:
        raise CheckpointError(
            "this checkpoint is not in the torch_dist format",
            where=str(file),
            found=f"sharded_backend {backend!r}",
            expected="torch_dist",
            fix="save it with the torch_dist format",
        )


def _check_places(index: Index) -> None:
    for key, stored in index.tensors.items():
        for box in stored.boxes:
            if (key, box.offsets) not in index.places:
                raise CheckpointError(
                    "the checkpoint's index is incomplete",
                    where=str(index.path / METADATA),
                    found=f"{key} {list(box.offsets)} is in no file",
                    fix="copy the checkpoint again",
                )


def _check_files(index: Index) -> None:
    """Compare the index with the files, by their sizes.

    Raises:
        CheckpointError: a file is missing or too short.
    """
    ends: dict[str, int] = {}
    for place in index.places.values():
        ends[place.file] = max(ends.get(place.file, 0), place.start + place.length)
    for name, end in sorted(ends.items()):
        file = index.path / name
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
