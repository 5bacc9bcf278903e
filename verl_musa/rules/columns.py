"""Columns that the recipe says its files have, against the files."""

from __future__ import annotations

from typing import Literal

from verl_musa.checks import Check, Finding, fail, ok, unknown
from verl_musa.data.subject import Subject

SPLITS: tuple[Literal["train", "val"], ...] = ("train", "val")


def check_columns(subject: Subject) -> Finding:
    """Every file of every split has the declared columns; only its footer is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    recipe = subject.resolved.recipe
    if not recipe.data.columns:
        return ok("none declared; verl's own are looked at by data.train.columns")
    where = recipe.document.where(("data", "columns"))
    for split in SPLITS:
        for file in subject.files(split):
            if (pending := subject.not_made_yet(file)) is not None:
                return pending
            try:
                found = pq.read_schema(file).names
            except (OSError, pa.ArrowInvalid):
                return unknown(f"{file} cannot be read (see data.{split}.files)")
            lacking = [name for name in recipe.data.columns if name not in found]
            if lacking:
                source = recipe.data.sources.get(split)
                again = f"prepare it again: verl-musa data prepare {source}" if source else "prepare it again"
                return fail(f"{file} has no column {', '.join(lacking)}; it has {', '.join(found)}", f"{again}, or correct data.columns", where)  # fmt: skip
    return ok(", ".join(recipe.data.columns))


CHECKS = (Check("data.declared", "columns that the recipe declares", check_columns),)
