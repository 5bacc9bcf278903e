"""``verl-musa run``: a recipe from its checks to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_musa.cli.options import DashboardPort, RayPort, RecipeName, RunsDir, Sets, Site, Variants
from verl_musa.run import STALL_MINUTES, RunOptions, run_recipe


def run(
    recipe: RecipeName,
    *,
    variants: Variants = None,
    sets: Sets = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with this run: its id, a unique prefix, or its path."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and write the run directory, start nothing.")
    ] = False,
    site: Site = None,
    runs_dir: RunsDir = Path("runs"),
    ray_port: RayPort = None,
    dashboard_port: DashboardPort = None,
    stall_minutes: Annotated[
        float, typer.Option("--stall-minutes", min=0.1, help="Longest time without a new training step.")
    ] = STALL_MINUTES,
    allow_drift: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-drift",
            metavar="ID",
            help="Let a patch through whose target has changed; recorded in the run.",
        ),
    ] = None,
    unlocked: Annotated[
        list[str] | None,
        typer.Option(
            "--unlocked",
            metavar="NAME=WHY",
            help="Let an item of recipe.lock through that differs (image, patches, conversion, model, data, config); recorded in the run.",
        ),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option("--gate/--no-gate", help="Check correctness before step 1 (docs/gate.md); recorded."),
    ] = True,
) -> int:
    """Run a recipe on this host, show its progress, and write a run directory."""
    return run_recipe(
        RunOptions(
            recipe=recipe,
            variants=tuple(variants or ()),
            sets=tuple(sets or ()),
            resume=resume,
            dry_run=dry_run,
            site=site,
            runs_dir=runs_dir,
            ray_port=ray_port,
            dashboard_port=dashboard_port,
            stall_minutes=stall_minutes,
            allow_drift=tuple(allow_drift or ()),
            gate="before" if gate else "off",
            unlocked=tuple(unlocked or ()),
        )
    )
