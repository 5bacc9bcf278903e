"""``verl-musa gate``: the day-0 correctness gate of a recipe, without the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def gate(
    recipe: Annotated[
        str,
        typer.Argument(help="Name, unique prefix or folder of a recipe; NAME@VARIANT+VARIANT for variants."),
    ],
    *,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant", metavar="NAME", help="Lay this variant over the recipe; may be given again."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override one key of verl's config; may be given again."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    site: Annotated[
        Path | None, typer.Option("--site", metavar="FILE", help="The site.yaml to use.", dir_okay=False)
    ] = None,
    runs_dir: Annotated[
        Path,
        typer.Option("--runs-dir", metavar="DIR", help="Where run directories are made.", file_okay=False),
    ] = Path("runs"),
    ray_port: Annotated[
        int | None, typer.Option("--ray-port", metavar="PORT", help="Port of Ray; by default a free one.")
    ] = None,
    dashboard_port: Annotated[
        int | None,
        typer.Option(
            "--dashboard-port", metavar="PORT", help="Port of Ray's dashboard; by default a free one."
        ),
    ] = None,
) -> None:
    """Start a recipe's job up to step 1 and check its correctness there; docs/gate.md lists the checks.

    Exit code: 0 when nothing failed (warnings are shown), 1 when the job failed before the gate, 2 when a check
    failed, 3 when nothing failed but something could not be looked at.
    """
    from verl_musa.checks import exit_code, render, to_json
    from verl_musa.run import RunOptions, gate_recipe

    results, folder = gate_recipe(
        RunOptions(
            recipe=recipe,
            variants=tuple(variants or ()),
            sets=tuple(sets or ()),
            site=site,
            runs_dir=runs_dir,
            ray_port=ray_port,
            dashboard_port=dashboard_port,
        )
    )
    if as_json:
        shown = {"recipe": recipe, "run": str(folder), **to_json(results)}
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        render(results, Console())
        typer.echo(f"run directory: {folder}")
    raise typer.Exit(exit_code(results))
