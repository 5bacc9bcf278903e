"""The columns of prompt files as verl reads them: through the ``datasets`` package, whose types are fewer than parquet's.

What was tried with datasets 5.2 and pyarrow 26: ``list_view``, ``map`` and ``string_view`` are refused; ``large_list`` and ``large_string``
are read, but do not join a file that has the plain ones; columns of JSON text stay text. datasets before 4 does not know the feature
type ``List`` that newer ones write into a file's metadata, and reads ``Sequence`` of a struct as a struct of lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.data.parquet import has_fields, is_messages, is_text

_METADATA = b"huggingface"
_ROW_GROUP_LIMIT = 1 << 31
"""Bytes from which pyarrow cannot read nested text in one piece."""


@dataclass(frozen=True)
class Fault:
    """Something about a file's columns.

    Attributes:
        file: the file.
        found: what was seen.
        fix: what to do.
        hard: whether verl would fail on it.
    """

    file: Path
    found: str
    fix: str
    hard: bool = True


_AGAIN = "write the file again with `verl-musa data prepare custom`"


def column_faults(file: Path, schema: Any, prompt_key: str, source_key: str) -> Iterator[Fault]:
    """Columns that are missing or hold something else than verl needs."""
    wanted = (
        (prompt_key, "a list of {role, content}", _is_prompt),
        (source_key, "text", is_text),
        ("reward_model", "a struct with ground_truth", lambda kind: has_fields(kind, "ground_truth")),
    )
    for name, expected, right in wanted:
        if name not in schema.names:
            yield Fault(
                file,
                f"no column {name!r}; the file has {', '.join(schema.names)}",
                f"add {name!r}: {expected}",
            )
            continue
        kind = schema.field(name).type
        if right(kind):
            continue
        found, fix = f"column {name!r} is {kind}", f"write {name!r} as {expected}"
        if is_text(kind) and name != source_key:
            found += ", perhaps JSON: verl does not parse it"
            fix = _AGAIN
        elif has_fields(kind, "role", "content"):
            found += ": one struct of lists, as older versions of datasets write messages"
            fix = _AGAIN
        yield Fault(file, found, fix)


def _is_prompt(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        kind = pa.list_(kind.value_type)
    if _is_view_list(kind):
        return True  # type_faults says that it is refused
    return is_messages(kind) and all(
        is_text(kind.value_type.field(kind.value_type.get_field_index(name)).type)
        or _is_view(kind.value_type, name)
        for name in ("role", "content")
    )


def _is_view_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _is_view(struct: Any, name: str) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string_view(struct.field(struct.get_field_index(name)).type))


def type_faults(file: Path, schema: Any) -> Iterator[Fault]:
    """Types that some version of ``datasets`` refuses or reads as something else."""
    import pyarrow as pa

    large = []
    for name in schema.names:
        for path, kind in _leaves(name, schema.field(name).type):
            if (
                _is_view_list(kind)
                or pa.types.is_string_view(kind)
                or pa.types.is_binary_view(kind)
                or pa.types.is_map(kind)
            ):
                yield Fault(file, f"{path} is {kind}, which datasets cannot read", _AGAIN)
            elif pa.types.is_large_list(kind):
                large.append(path)
    if large:
        yield Fault(
            file,
            f"large_list in {', '.join(large)}: datasets before 3.0 refuses it, and it does not join files that have plain lists",
            _AGAIN,
            hard=False,
        )
    yield from _metadata_faults(file, schema)


def _leaves(path: str, kind: Any) -> Iterator[tuple[str, Any]]:
    """Every type inside ``kind``, itself first."""
    import pyarrow as pa

    yield path, kind
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind) or pa.types.is_dictionary(kind):
        return
    elif hasattr(kind, "value_type"):
        yield from _leaves(f"{path}[]", kind.value_type)


def _metadata_faults(file: Path, schema: Any) -> Iterator[Fault]:
    """What the feature types in the file's own metadata mean to other versions of ``datasets``."""
    raw = (schema.metadata or {}).get(_METADATA)
    if raw is None:
        return
    try:
        features = json.loads(raw)["info"]["features"]
    except (ValueError, KeyError, TypeError):
        yield Fault(file, "its metadata for datasets cannot be read", _AGAIN)
        return
    names = set(_feature_types(features))
    if "Sequence" in names:
        yield Fault(
            file,
            "its metadata says Sequence: datasets before 4.0 then reads messages as one struct of lists",
            _AGAIN,
            hard=False,
        )
    elif names & {"List", "LargeList"}:
        yield Fault(
            file, "its metadata says List, which datasets before 4.0 does not know", _AGAIN, hard=False
        )


def _feature_types(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("_type"), str):
            yield value["_type"]
        for item in value.values():
            yield from _feature_types(item)
    elif isinstance(value, list):
        for item in value:
            yield from _feature_types(item)


def group_faults(file: Path, metadata: Any) -> Iterator[Fault]:
    """Row groups that are too large to read in one piece."""
    sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    if sizes and max(sizes) >= _ROW_GROUP_LIMIT:
        yield Fault(
            file,
            f"a row group of {max(sizes) / 2**30:.1f} GiB: nested text of more than 2 GiB cannot be read in one piece",
            f"{_AGAIN}, which makes small row groups",
        )


def joined(files: Sequence[Path], schemas: Sequence[Any]) -> Fault | None:
    """What keeps ``datasets`` from reading ``files``, or from joining them as verl does; None where nothing does.

    Raises:
        ImportError: datasets is not installed here.
    """
    from datasets import Features
    from datasets.features.features import _align_features, _check_if_features_can_be_aligned

    read = []
    for file, schema in zip(files, schemas, strict=True):
        try:
            read.append(Features.from_arrow_schema(schema))
        except Exception as error:  # noqa: BLE001  (ValueError, KeyError, TypeError: whatever its parser meets)
            return Fault(file, f"datasets refuses it: {_short(error)}", _AGAIN)
        try:
            _check_if_features_can_be_aligned(read)
            _align_features(read)
        except ValueError as error:
            return Fault(file, f"it does not join {files[0].name}: {_short(error)}", "write all files alike")
    return None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:240]
