"""``verl-musa lint``: machine paths, host addresses, secrets, broken launch scripts and YAML, faulty recipes."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from verl_musa.checks import Result


def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files and folders. Default: the working directory, unless --installed is given."
        ),
    ] = None,
    *,
    installed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIST",
            help="Lint the files of this installed distribution, such as verl; may be given again.",
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Only this rule, or the rules whose ids start so ('path'); may be given again."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Not this rule, or these; may be given again.")
    ] = None,
    recipes: Annotated[
        bool, typer.Option("--recipes/--no-recipes", help="Run the checks of every recipe that is met.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    sarif: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Also write SARIF 2.1.0, for code-review tools."),
    ] = None,
) -> None:
    """Find what breaks a launch elsewhere: machine paths, host addresses, secrets, faults of scripts, YAML and recipes.

    Waive one finding with a comment on its line, or above its command: # verl-musa: ignore[ID] reason.

    Exit code: 0 when nothing failed (warnings are shown), 2 for findings or bad input, 3 when nothing failed, but a file
    could not be parsed. docs/lint.md explains each rule.
    """
    from verl_musa.checks import exit_code
    from verl_musa.errors import LintError
    from verl_musa.fileio import write_json
    from verl_musa.lint import as_json as plain
    from verl_musa.lint import lint as run_lint
    from verl_musa.lint import render, to_sarif

    if sarif is not None and not sarif.parent.is_dir():
        raise LintError("no folder for the SARIF file", where=str(sarif), fix=f"mkdir -p {sarif.parent}")
    able = _can_check_recipes()
    report = run_lint(
        paths or ([] if installed else [Path()]),
        installed=installed or (),
        select=select or (),
        ignore=ignore or (),
        recipe_check=_check_recipe if recipes and able and not select else None,
    )
    if recipes and not able:
        report.notes.append("recipes were not checked: veRL is not installed here")
    if sarif is not None:
        write_json(sarif, to_sarif(report, Path()))
    if as_json:
        typer.echo(json.dumps(plain(report), indent=2, ensure_ascii=False))
    else:
        render(report, Console())
    raise typer.Exit(exit_code(report.results()))


def _can_check_recipes() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("omegaconf", "hydra", "verl"))


def _check_recipe(folder: Path) -> list[Result]:
    """The outcome of ``verl-musa recipe check`` for a recipe and each of its variants; their assets are not made."""
    from verl_musa.recipe import list_variants

    results = _check_variant(folder)
    known = {(result.check, result.evidence) for result in results}
    for name in list_variants(folder):
        for result in _check_variant(folder, name):
            if (result.check, result.evidence) not in known:
                results.append(replace(result, evidence=f"variant {name}: {result.evidence}"))
    return results


def _check_variant(folder: Path, *variants: str) -> list[Result]:
    from verl_musa.data import check_recipe
    from verl_musa.recipe import assets_dir, load_recipe, load_site, resolve

    recipe = load_recipe(str(folder.resolve()), variants=variants)
    resolved = resolve(recipe, run_dir=Path("runs", recipe.name, "RUN-ID"), site=load_site())
    assets = assets_dir(recipe)
    return check_recipe(resolved, assets_ready=assets is None or assets.is_dir())
