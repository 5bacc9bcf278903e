"""Ops and dtypes that real torch_musa lacks, and what the simulator does when one is used.

``MUSA_SIM_DENYLIST`` chooses: ``off`` (nothing is refused), ``warn`` (every listed gap warns once), ``error`` (the
default: what is *missing* on the device raises, what is there in part passes) or ``strict`` (both raise).
The default raises only where the real device would raise for certain, so a job that fails here fails there too.
``MUSA_SIM_DENYLIST_FILE`` names a list to use instead of the package's ``denylist.toml``.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_musa import _C

MODES = ("off", "warn", "error", "strict")
DEFAULT_MODE = "error"
GAPS = ("missing", "partial")
DEFAULT_FILE = Path(__file__).with_name("denylist.toml")
_FIELDS = {"name", "ops", "dtypes", "gap", "torch_musa", "source", "reason"}


@dataclass(frozen=True)
class Entry:
    """One gap of real torch_musa.

    Attributes:
        name: what error messages call the entry.
        ops: operator names; without an overload (``aten::mm``), all overloads.
        dtypes: the gap exists only for tensors of these dtypes; empty: any dtype.
        gap: ``missing`` (nothing on the device serves it) or ``partial``.
        torch_musa: versions in which the gap was seen.
        source: where it was seen, publicly.
        reason: what is wrong and what to do instead.
    """

    name: str
    ops: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    gap: str
    torch_musa: tuple[str, ...]
    source: str
    reason: str

    def text(self) -> str:
        """The end of every message about this entry."""
        versions = ", ".join(self.torch_musa)
        return (
            f"{self.reason} (simulator denylist entry {self.name!r}, {self.gap} in torch_musa {versions}; "
            "MUSA_SIM_DENYLIST=warn or off lets it pass)"
        )


_mode = "off"
_entries: tuple[Entry, ...] = ()


def read(path: Path) -> tuple[Entry, ...]:
    """Reads a denylist file.

    Raises:
        ValueError: naming the file, the entry, what was found and what was expected.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: cannot read the denylist: {error}") from error
    return tuple(_entry(path, number, raw) for number, raw in enumerate(document.get("entry", []), start=1))


def _entry(path: Path, number: int, raw: dict[str, Any]) -> Entry:
    where = f"{path}: entry {number} ({raw.get('name', 'no name')})"
    if set(raw) != _FIELDS:
        raise ValueError(f"{where}: expected the fields {sorted(_FIELDS)}, found {sorted(raw)}")
    if raw["gap"] not in GAPS:
        raise ValueError(f"{where}: gap: expected one of {GAPS}, found {raw['gap']!r}")
    if not raw["ops"]:
        raise ValueError(f"{where}: ops: expected at least one operator, found none")
    dtypes = []
    for name in raw["dtypes"]:
        dtype = getattr(torch, name, None)
        known = isinstance(dtype, torch.dtype)
        if not known:
            raise ValueError(f"{where}: dtypes: expected names of torch dtypes, found {name!r}")
        dtypes.append(dtype)
    return Entry(
        name=raw["name"],
        ops=tuple(raw["ops"]),
        dtypes=tuple(dtypes),
        gap=raw["gap"],
        torch_musa=tuple(raw["torch_musa"]),
        source=raw["source"],
        reason=raw["reason"],
    )


def apply(mode: str = DEFAULT_MODE, path: Path = DEFAULT_FILE) -> None:
    """Puts a denylist into force for this process, in place of the one before.

    Args:
        mode: one of ``MODES``.
        path: the list.

    Raises:
        ValueError: unknown mode, a bad file, or an operator that this torch does not have.
    """
    if mode not in MODES:
        raise ValueError(f"denylist mode: expected one of {', '.join(MODES)}; found {mode!r}")
    entries = read(path) if mode != "off" else ()
    used = [e for e in entries if mode != "error" or e.gap == "missing"]
    unknown = _C.denylist_set([(list(e.ops), list(e.dtypes), mode != "warn", e.text()) for e in used])
    if unknown:
        raise ValueError(f"{path}: no such operator in torch {torch.__version__}: {', '.join(unknown)}")
    global _mode, _entries
    _mode, _entries = mode, entries


@contextlib.contextmanager
def using(mode: str, path: Path = DEFAULT_FILE) -> Iterator[None]:
    """Like ``apply`` inside a ``with`` block; afterwards, the default list in the mode that was in force."""
    before = _mode
    apply(mode, path)
    try:
        yield
    finally:
        apply(before)


def mode() -> str:
    """The mode in force."""
    return _mode


def entries() -> tuple[Entry, ...]:
    """The entries read for the mode in force (none when it is ``off``)."""
    return _entries


def load_environment() -> None:
    """Applies ``MUSA_SIM_DENYLIST`` and ``MUSA_SIM_DENYLIST_FILE``; called when torch_musa is imported.

    Raises:
        ValueError: see ``apply``.
    """
    value = os.environ.get("MUSA_SIM_DENYLIST", "") or DEFAULT_MODE
    if value not in MODES:
        raise ValueError(f"MUSA_SIM_DENYLIST: expected one of {', '.join(MODES)}; found {value!r}")
    apply(value, Path(os.environ.get("MUSA_SIM_DENYLIST_FILE", "") or DEFAULT_FILE))
