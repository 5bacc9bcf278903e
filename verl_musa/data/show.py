"""``verl-musa data show``: columns, counts, lengths and a few rows of a prompt file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.data.check_lengths import Lengths
from verl_musa.data.prepare_reading import read_batches
from verl_musa.errors import DataError

BATCH = 4096
QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)


@dataclass
class Shown:
    """What a file holds.

    Attributes:
        file: the file.
        rows: how many.
        columns: name -> arrow type; empty for a JSON file.
        sources: rows of each data source.
        characters: lengths of the prompts, by :data:`QUANTILES`.
        tokens: the same after the chat template; empty where there is no tokenizer.
        first: the first rows.
        rendered: their prompts as the model reads them; empty where there is no tokenizer.
    """

    file: Path
    rows: int = 0
    columns: dict[str, str] = field(default_factory=dict)
    sources: Counter[str] = field(default_factory=Counter)
    characters: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    first: list[dict[str, Any]] = field(default_factory=list)
    rendered: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        quantiles = [f"{share:g}" for share in QUANTILES]
        return {
            "schema": 1,
            "file": str(self.file),
            "rows": self.rows,
            "columns": self.columns,
            "data_sources": dict(self.sources.most_common()),
            "characters": dict(zip(quantiles, self.characters, strict=False)),
            "tokens": dict(zip(quantiles, self.tokens, strict=False)),
            "first": self.first,
            "rendered": self.rendered,
        }


def show(
    file: Path,
    *,
    rows: int = 3,
    prompt_key: str = "prompt",
    source_key: str = "data_source",
    lengths: Lengths | None = None,
) -> Shown:
    """Look through ``file``; with ``lengths``, through the chat template too.

    Raises:
        DataError: it cannot be read.
    """
    import numpy as np

    shown = Shown(file, columns=_columns(file))
    counted: list[int] = []
    for batch in read_batches(file, BATCH):
        shown.rows += len(batch.rows)
        shown.first += batch.rows[: max(0, rows - len(shown.first))]
        shown.sources.update(str(row.get(source_key)) for row in batch.rows)
        usable = [
            (number, row[prompt_key])
            for number, row in zip(batch.places, batch.rows, strict=True)
            if _usable(row.get(prompt_key))
        ]
        counted += [sum(len(message["content"]) for message in messages) for _, messages in usable]
        if lengths is not None:
            lengths.look(file, [number for number, _ in usable], [messages for _, messages in usable])
    if counted:
        # The lengths that are in the data, not values between them.
        shown.characters = [int(value) for value in np.quantile(counted, QUANTILES, method="inverted_cdf")]
    if lengths is not None and lengths.histogram:
        shown.tokens = [lengths.quantile(share) for share in QUANTILES]
        shown.rendered = list(_rendered(shown.first, prompt_key, lengths))
    return shown


def _columns(file: Path) -> dict[str, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.suffix != ".parquet" or not file.is_file():
        return {}
    try:
        return {column.name: str(column.type) for column in pq.read_schema(file)}
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            "cannot be read as parquet", where=str(file), found=" ".join(str(error).split())[:300]
        ) from error


def _usable(messages: Any) -> bool:
    return bool(
        isinstance(messages, list)
        and messages
        and all(isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages)
    )


def _rendered(rows: list[dict[str, Any]], prompt_key: str, lengths: Lengths) -> Iterator[str]:
    for row in rows:
        if _usable(row.get(prompt_key)):
            yield lengths.render(row[prompt_key])
