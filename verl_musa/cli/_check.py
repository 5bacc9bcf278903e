"""What ``verl-musa recipe check`` does, beside parsing its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from verl_musa import checks
from verl_musa.checks import Result, Status
from verl_musa.errors import VerlMusaError
from verl_musa.recipe import (
    Recipe,
    Resolved,
    Site,
    assets_dir,
    ensure_assets,
    list_recipes,
    list_variants,
    load_recipe,
    load_site,
    resolve,
)

RESOLVE = "recipe.resolve"


@dataclass(frozen=True)
class Checked:
    """What was found about one recipe; ``deferred`` names the checks that wait for the run."""

    title: str
    results: list[Result]
    deferred: tuple[str, ...] = ()
    missing_site: tuple[str, ...] = ()


def everything() -> list[str]:
    """Every recipe, and every variant of each."""
    return [
        title
        for name, folder in list_recipes().items()
        for title in (str(folder), *(f"{folder}@{variant}" for variant in list_variants(folder)))
        if name
    ]


def look_at(
    names: Sequence[str],
    *,
    variants: Sequence[str],
    sets: Sequence[str],
    site: Path | None,
    make_assets: bool,
    files: bool,
    raise_errors: bool,
) -> list[Checked]:
    """Check each of ``names``; with ``raise_errors`` a file with a mistake is raised, else a result.

    ``files`` false: those checks of files are made whose files are here already.
    """
    from verl_musa.rules import Look, check_recipes

    facts, found = load_site(site), {}
    looks: dict[int, Look] = {}
    for index, name in enumerate(names):
        try:
            recipe, resolved = _resolve(name, variants, sets, facts)
            if make_assets and recipe.assets is not None:
                ensure_assets(recipe, progress=lambda line: typer.echo(line, err=True))
        except VerlMusaError as error:
            if raise_errors:
                raise
            found[index] = Checked(name.rpartition("/")[2], [_mistake(error)])
            continue
        folder = assets_dir(recipe)
        ready = folder is None or folder.is_dir()
        looks[index] = Look(resolved, assets_ready=ready, files=files or ready)
    for (index, look), report in zip(looks.items(), check_recipes(list(looks.values())), strict=True):
        missing = tuple(look.resolved.missing_site)
        found[index] = Checked(look.resolved.recipe.title, report.results, report.deferred, missing)
    return [found[index] for index in range(len(names))]


def _resolve(name: str, variants: Sequence[str], sets: Sequence[str], site: Site) -> tuple[Recipe, Resolved]:
    recipe = load_recipe(name, variants=variants)
    run_dir = Path("runs", recipe.name, "RUN-ID")
    return recipe, resolve(recipe, run_dir=run_dir, site=site, sets=sets, without_site=True)


def _mistake(error: VerlMusaError) -> Result:
    seen = "; ".join(part for part in (error.message, error.found and f"found {error.found}") if part)
    fix = "; ".join(part for part in (error.expected and f"expected {error.expected}", error.fix) if part)
    return Result(
        check=RESOLVE,
        looks_at="the recipe's files",
        status=Status.FAIL,
        evidence=seen,
        fix=fix,
        where=error.where or "",
    )


def exit_code(found: Sequence[Checked]) -> int:
    """As for the results of all of them."""
    return checks.exit_code([result for one in found for result in one.results])


def to_json(found: Sequence[Checked]) -> dict[str, Any]:
    """One recipe's results as plain data, or those of several under ``recipes``."""
    each = [
        {
            "recipe": one.title,
            **checks.to_json(one.results),
            "deferred": list(one.deferred),
            "missing_site": list(one.missing_site),
        }
        for one in found
    ]
    if len(each) == 1:
        return each[0]
    return {"schema": checks.JSON_SCHEMA, "exit_code": exit_code(found), "recipes": each}


def render(found: Sequence[Checked], console: Console, *, whole: bool) -> None:
    """All results of one recipe, or of several what is not OK."""
    for one in found:
        shown = one.results if whole else [result for result in one.results if result.status is not Status.OK]
        if not whole:
            console.print(
                f"{one.title}: {len(one.results)} checks, {'all OK' if not shown else f'{len(shown)} not OK'}",
                highlight=False,
            )
        if shown:
            checks.render(shown, console)
        if one.deferred and whole:
            reason = (
                f"site.yaml does not set {', '.join(one.missing_site)}"
                if one.missing_site
                else "their files are not here"
            )
            console.print(
                f"{len(one.deferred)} checks of files wait for the run ({reason}): {', '.join(one.deferred)}",
                highlight=False,
            )
    waiting = sum(bool(one.deferred) for one in found)
    if waiting and not whole:
        console.print(
            f"checks of files wait for the run in {waiting} of {len(found)}: no site.yaml, or assets not made",
            highlight=False,
        )
