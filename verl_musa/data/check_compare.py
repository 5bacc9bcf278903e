"""Rows that are equal: duplicates, the same prompt with two answers, and training prompts among the validation prompts."""

from __future__ import annotations

from typing import Any

from verl_musa.data.check_rows import Prompts
from verl_musa.data.check_tally import Tally
from verl_musa.data.digests import as_array


def duplicates(prompts: Prompts) -> tuple[Tally, Tally]:
    """(rows whose prompt stands in an earlier row with the same answer, with another answer)."""
    import numpy as np

    same, other = Tally(), Tally()
    if not len(prompts):
        return same, other
    keys, truths = as_array([bytes(prompts.prompts)]), as_array([bytes(prompts.truths)])
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    # For each row in that order: the row in which its prompt stands first.
    first = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))]
    repeated = ~starts
    conflict = repeated & (truths[order] != truths[first])
    for tally, chosen in ((same, repeated & ~conflict), (other, conflict)):
        _fill(tally, prompts, order[chosen], first[chosen])
    return same, other


def leaked(train: Prompts, val: Prompts) -> Tally:
    """Validation rows whose question stands in the training data."""
    import numpy as np

    tally = Tally()
    if not len(train) or not len(val):
        return tally
    known, asked = as_array([bytes(train.questions)]), as_array([bytes(val.questions)])
    order = np.argsort(known, kind="stable")
    places = np.minimum(np.searchsorted(known[order], asked), len(known) - 1)
    hits = np.flatnonzero(known[order][places] == asked)
    for index in hits[: _named(tally)]:
        file, number = val.place(int(index))
        there, row = train.place(int(order[places[index]]))
        tally.add(file, number, f"is also {there.name}:{row}")
    tally.count = len(hits)
    return tally


def _named(tally: Tally) -> int:
    from verl_musa.data.check_tally import FIRST

    return FIRST - len(tally.first)


def _fill(tally: Tally, prompts: Prompts, rows: Any, firsts: Any) -> None:
    import numpy as np

    for at in np.argsort(rows, kind="stable")[: _named(tally)]:
        file, number = prompts.place(int(rows[at]))
        there, row = prompts.place(int(firsts[at]))
        tally.add(file, number, f"repeats {there.name}:{row}")
    tally.count = len(rows)
