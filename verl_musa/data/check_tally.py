"""What a check has counted: how many rows, and the first of them with their places."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIRST = 5
"""Rows that a report names; the others are counted."""


@dataclass(frozen=True)
class Place:
    """One offending row.

    Attributes:
        file: its file.
        number: its row, from 0, or its line, from 1, in a text file.
        found: what was seen there.
    """

    file: Path
    number: int
    found: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.number} {self.found}"


@dataclass
class Tally:
    """Rows with one kind of fault."""

    count: int = 0
    first: list[Place] = field(default_factory=list)

    def add(self, file: Path, number: int, found: str, count: int = 1) -> None:
        """Count one row, or ``count`` of which this is the first."""
        self.count += count
        if len(self.first) < FIRST:
            self.first.append(Place(file, number, found))

    @property
    def where(self) -> str:
        """``FILE:N`` of the first row."""
        return f"{self.first[0].file}:{self.first[0].number}" if self.first else ""

    def evidence(self, rows: int) -> str:
        """The count and the first rows, for a report."""
        more = " …" if self.count > len(self.first) else ""
        return f"{self.count:,} of {rows:,} rows: {'; '.join(map(str, self.first))}{more}"

    def as_json(self) -> dict[str, Any]:
        """The tally as plain data."""
        return {
            "count": self.count,
            "first": [{"file": str(one.file), "row": one.number, "found": one.found} for one in self.first],
        }
