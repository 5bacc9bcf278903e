"""``verl-musa gate``: the day-0 correctness gate of a recipe, without the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verl_musa.cli.options import DashboardPort, RayPort, RecipeName, RunsDir, Sets, Site, Variants


def gate(
    recipe: RecipeName,
    *,
    variants: Variants = None,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    site: Site = None,
    runs_dir: RunsDir = Path("runs"),
    ray_port: RayPort = None,
    dashboard_port: DashboardPort = None,
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
