"""The recipe's card against the recipe: a table that contradicts the configuration is worse than none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from verl_musa.checks import Check, Finding, fail, ok, unknown, warn
from verl_musa.data.placement_memory import COMFORT
from verl_musa.data.sizes import CARD_GIB, phases, shape_of
from verl_musa.data.subject import Subject
from verl_musa.errors import RecipeError
from verl_musa.plan import GIB
from verl_musa.recipe import parse_value

CARD = "README.md"
TOLERANCE = 0.05
"""Share by which promised hours may differ from steps x minutes: figures on a card are rounded."""

_ROW = re.compile(r"^\|\s*`(?P<key>[\w.+@…-]+)`\s*\|\s*(?P<value>[^|]*?)\s*\|")
_ELLIPSIS = "…"


def rows(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, key, value) of each table row whose first cell is one key in backticks with a dot in it."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = _ROW.match(line)
        if match and "." in match["key"]:
            yield number, match["key"], match["value"].strip("`")


def check_values(subject: Subject) -> Finding:
    """Each value in the card's tables is the recipe's own."""
    recipe = subject.resolved.recipe
    file = recipe.folder / CARD
    if recipe.layers:
        return ok("the card is the recipe's; a variant departs from it")
    if not file.is_file():
        return warn("no card", f"write {CARD}: what it trains, each value and its reason", str(recipe.folder))
    asked = set(_asked(subject))  # what the command line sets departs from the card, and may
    known = [override.path for override in subject.resolved.overrides]
    count = 0
    for line, key, value in rows(file.read_text(encoding="utf-8")):
        path = _full(key.lstrip("+"), known)
        if path is None or path in asked:
            continue
        try:
            written = parse_value(value, f"{file}:{line}")
        except RecipeError:
            continue  # a cell of words
        found = subject.select(path)
        count += 1
        if not _same(written, found):
            return fail(
                f"the card says {path} is {value}, the recipe says {found} ({subject.where(path)})",
                "correct one of the two",
                f"{file}:{line}",
            )
    return ok(f"{count} value(s) agree")


def _asked(subject: Subject) -> list[str]:
    """The keys that ``--set`` gave."""
    return [one.path for one in subject.resolved.overrides if one.origin.startswith("--set ")]


def _full(key: str, known: list[str]) -> str | None:
    """The one override that ``key`` names; ``…`` at its start stands for any beginning."""
    if not key.startswith(_ELLIPSIS):
        return key if key in known else None
    fitting = [
        path
        for path in known
        if path.endswith(key.lstrip(f"{_ELLIPSIS}.")) and path.startswith("actor_rollout_ref")
    ]
    return fitting[0] if len(fitting) == 1 else None


def _same(written: Any, found: Any) -> bool:
    if isinstance(written, int | float) and isinstance(found, int | float):
        return float(written) == float(found)
    # Several words describe a value rather than give it.
    return (isinstance(written, str) and " " in written) or str(written) == str(found)


def check_time(subject: Subject) -> Finding:
    """A promised total is steps x the promised time of a step."""
    recipe = subject.resolved.recipe
    if recipe.expect is None:
        return ok("no times are promised")
    where = recipe.document.where(("expect", "total_hours"))
    steps = subject.optional_integer("trainer.total_training_steps")
    if steps is None:
        return unknown(
            "trainer.total_training_steps is not set: the length depends on the rows", "set it", where
        )
    if asked := _asked(subject):
        return ok(f"times are promised for the recipe itself; --set changes {', '.join(asked)}")
    for minutes, hours in zip(recipe.expect.step_minutes, recipe.expect.total_hours, strict=True):
        total = steps * minutes / 60
        if abs(hours - total) > TOLERANCE * max(total, 1):
            return fail(
                f"{hours:g} h are promised; {steps} steps of {minutes:g} min take {total:.0f} h",
                "correct expect in recipe.yaml, and the card",
                where,
            )
    low, high = recipe.expect.total_hours
    return ok(f"{steps} steps, {low:g} to {high:g} h")


def check_memory(subject: Subject) -> Finding:
    """The promised memory holds the estimate."""
    recipe = subject.resolved.recipe
    if recipe.expect is None or recipe.device.simulated:
        return ok("no memory is promised")
    if asked := _asked(subject):
        return ok(f"memory is promised for the recipe itself; --set changes {', '.join(asked)}")
    shape = shape_of(subject)
    if shape is None:
        return unknown("the model's sizes are not known")
    fullest = max(phase.total for phase in phases(subject, shape)) / GIB
    low, high = recipe.expect.device_gib
    where = recipe.document.where(("expect", "device_gib"))
    if not low <= fullest <= high:
        return fail(
            f"{low:g} to {high:g} GiB are promised, the estimate is {fullest:.0f} GiB",
            "correct expect.device_gib, and the card",
            where,
        )
    if high > COMFORT * CARD_GIB:
        return warn(
            f"up to {high:g} GiB are promised, of {CARD_GIB:.0f}", "leave a tenth of a device free", where
        )
    return ok(f"estimate {fullest:.0f} GiB, promised {low:g} to {high:g}")


CHECKS = (
    Check("card.values", "values in the card's tables against the recipe", check_values),
    Check("card.time", "promised hours against steps x minutes", check_time),
    Check("card.memory", "promised memory against the estimate", check_memory),
)
