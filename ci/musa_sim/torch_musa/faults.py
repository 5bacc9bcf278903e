"""Fault injection: make an allocation run out of memory, or a collective hang or fail, on purpose.

From Python: ``oom``, ``hang``, ``error``, ``clear``, ``active``. From outside a process: ``MUSA_SIM_FAULTS``, faults
separated by ``;``, each ``kind:key=value,key=value``::

    MUSA_SIM_FAULTS="oom:at=100,device=0;hang:op=all_reduce,at=3,rank=1"

======= ============================================================ =====================================
kind    keys (all optional)                                          effect
======= ============================================================ =====================================
oom     at=1, count=1, device=any, min_bytes=0                       torch.OutOfMemoryError
hang    op=any, at=1, count=1, rank=any                              the work fails after its own timeout
error   op=any, at=1, count=1, rank=any                              torch.distributed.DistBackendError
======= ============================================================ =====================================

``at`` counts matching events of this process from 1, from the moment the fault was set; ``count`` is for how many
events in a row it holds. ``op`` is a name of ``torch_musa.mccl.OPS``; ``rank`` is the rank inside the group called.
A rank that hangs never joins the collective, so its peers run into their own timeout.
"""

from __future__ import annotations

import os
from typing import Any

from torch_musa import _C
from torch_musa.mccl import OPS

_ANY = -1
_KEYS = {
    "oom": {"at", "count", "device", "min_bytes"},
    "hang": {"at", "count", "op", "rank"},
    "error": {"at", "count", "op", "rank"},
}


def _add(kind: str, **given: Any) -> None:
    values: dict[str, Any] = {"op": "*", "device": _ANY, "rank": _ANY, "min_bytes": 0, "at": 1, "count": 1}
    values.update({key: value for key, value in given.items() if value is not None})
    if values["op"] != "*" and values["op"] not in OPS:
        raise ValueError(f"fault {kind}: op: expected one of {', '.join(OPS)}; found {values['op']!r}")
    for key, least in (("at", 1), ("count", 1), ("min_bytes", 0), ("device", _ANY), ("rank", _ANY)):
        if values[key] < least:
            raise ValueError(f"fault {kind}: {key}: expected at least {least}, found {values[key]}")
    _C.faults_add(kind=kind, **values)


def oom(at: int = 1, *, count: int = 1, device: int | None = None, min_bytes: int = 0) -> None:
    """Makes a device allocation of this process raise ``torch.OutOfMemoryError``.

    Args:
        at: the first allocation that fails, counted from 1 from now.
        count: how many in a row fail.
        device: visible ordinal; None: allocations on any device count.
        min_bytes: smaller allocations are neither counted nor failed.

    Raises:
        ValueError: a number out of range.
    """
    _add("oom", at=at, count=count, device=device, min_bytes=min_bytes)


def hang(op: str | None = None, at: int = 1, *, count: int = 1, rank: int | None = None) -> None:
    """Makes a collective of this process hang: its work fails when the collective's timeout has passed.

    Args:
        op: a name of ``torch_musa.mccl.OPS``; None: any.
        at: the first call that hangs, counted from 1 from now.
        count: how many in a row hang.
        rank: only calls in which this process has this rank of the group; None: any.

    Raises:
        ValueError: an unknown name, or a number out of range.
    """
    _add("hang", op=op, at=at, count=count, rank=rank)


def error(op: str | None = None, at: int = 1, *, count: int = 1, rank: int | None = None) -> None:
    """Makes a collective of this process raise ``torch.distributed.DistBackendError``; arguments as in ``hang``."""
    _add("error", op=op, at=at, count=count, rank=rank)


def clear() -> None:
    """Removes every fault of this process, whether set by a call or by the environment."""
    _C.faults_clear()


def active() -> list[dict[str, Any]]:
    """The faults set, each with ``seen`` (matching events so far) and ``fired``."""
    return list(_C.faults_list())


def parse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Reads the format of ``MUSA_SIM_FAULTS``.

    Raises:
        ValueError: naming the part that is wrong, what was found and what was expected.
    """
    result = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        kind, _, rest = part.partition(":")
        if kind not in _KEYS:
            raise ValueError(
                f"MUSA_SIM_FAULTS: {part!r}: expected a kind of {', '.join(_KEYS)}; found {kind!r}"
            )
        values: dict[str, Any] = {}
        for pair in filter(None, (piece.strip() for piece in rest.split(","))):
            key, equals, value = pair.partition("=")
            if key not in _KEYS[kind] or not equals:
                keys = ", ".join(f"{key}=…" for key in sorted(_KEYS[kind]))
                raise ValueError(f"MUSA_SIM_FAULTS: {part!r}: expected {keys}; found {pair!r}")
            values[key] = value if key == "op" else _number(part, key, value)
        result.append((kind, values))
    return result


def _number(part: str, key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(
            f"MUSA_SIM_FAULTS: {part!r}: {key}: expected a whole number, found {value!r}"
        ) from None


def load_environment() -> None:
    """Sets the faults of ``MUSA_SIM_FAULTS``; called when torch_musa is imported.

    Raises:
        ValueError: see ``parse``.
    """
    for kind, values in parse(os.environ.get("MUSA_SIM_FAULTS", "")):
        try:
            _add(kind, **values)
        except ValueError as error:
            raise ValueError(f"MUSA_SIM_FAULTS: {error}") from None
