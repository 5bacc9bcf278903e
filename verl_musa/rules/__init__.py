"""A recipe against verl, Megatron-Core, SGLang and the model's facts, before anything is started; and what its parameters mean.

Public face: :func:`check_recipe` and :func:`check_recipes` for the results, :func:`explain` for one parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_musa.checks import Check, Result, run_checks
from verl_musa.data import CHECKS as DATA_CHECKS
from verl_musa.data import FILE_CHECKS as DATA_FILE_CHECKS
from verl_musa.data import Subject
from verl_musa.recipe import Resolved
from verl_musa.rules import card, columns, conflicts, conversion, environment, layout, names, tokens
from verl_musa.rules.explain import Explanation, explain
from verl_musa.rules.upstream import ask_verl

__all__ = [
    "CHECKS",
    "FILE_CHECKS",
    "Explanation",
    "Look",
    "Report",
    "check_recipe",
    "check_recipes",
    "explain",
]

RULES: tuple[Check[Subject], ...] = (
    *layout.CHECKS,
    *tokens.CHECKS,
    *conflicts.CHECKS,
    *environment.CHECKS,
    *names.CHECKS,
    *conversion.CHECKS,
    *card.CHECKS,
    *columns.CHECKS,
)
CHECKS: tuple[Check[Subject], ...] = (*DATA_CHECKS, *RULES)
FILE_CHECKS: tuple[Check[Subject], ...] = (*DATA_FILE_CHECKS, *columns.CHECKS)
"""Those that read the model's folder or the data: where these are not at hand, they wait for the run."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found about one recipe.

    Attributes:
        results: in the order of :data:`CHECKS`, verl's own last.
        deferred: checks that need files which are not here; every run makes them before it starts.
    """

    results: list[Result]
    deferred: tuple[str, ...]


def check_recipe(
    resolved: Resolved, *, assets_ready: bool = True, files: bool = True, verl: bool = True
) -> Report:
    """Run every check on one recipe; see :func:`check_recipes`."""
    (report,) = check_recipes([Look(resolved, assets_ready=assets_ready, files=files)], verl=verl)
    return report


@dataclass(frozen=True)
class Look:
    """One recipe to look at.

    Attributes:
        resolved: the recipe.
        assets_ready: whether assets have been made; where not, what lies in them is UNKNOWN.
        files: make the checks that read model and data too, but where the site does not say where those are.
    """

    resolved: Resolved
    assets_ready: bool = True
    files: bool = True


def check_recipes(looks: Sequence[Look], *, verl: bool = True) -> list[Report]:
    """Run every check on each recipe; ``verl``: ask verl's own dataclasses and validation too, in one process for all."""
    own = ask_verl([look.resolved for look in looks]) if verl else []
    reports = []
    for index, look in enumerate(looks):
        here = look.files and not look.resolved.missing_site
        chosen = [check for check in CHECKS if here or check not in FILE_CHECKS]
        results = run_checks(chosen, Subject(look.resolved, look.assets_ready))
        deferred = () if here else tuple(check.name for check in FILE_CHECKS)
        reports.append(Report(results=[*results, *own[index : index + 1]], deferred=deferred))
    return reports
