"""``verl-musa run``: a recipe from its checks to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_musa.run import STALL_MINUTES, RunOptions, run_recipe


def run(
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
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with this run: its id, a unique prefix, or its path."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and write the run directory, start nothing.")
    ] = False,
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
        )
    )
