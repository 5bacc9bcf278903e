"""``verl-musa run``: a recipe from its checks to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verl_musa.cli.options import (
    DashboardPort,
    DevicesPerNode,
    Head,
    Hosts,
    Nodes,
    RayPort,
    RecipeName,
    Retries,
    RunsDir,
    Sets,
    Site,
    Variants,
    split_hosts,
)
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
    hosts: Hosts = None,
    head: Head = None,
    nodes: Nodes = None,
    devices_per_node: DevicesPerNode = None,
    retries: Retries = 0,
) -> int:
    """Run a recipe, show its progress, and write a run directory.

    On this host; or, where the recipe is written for several or --hosts or --nodes is given, on the hosts of the site: a supervisor
    then does the work, and Ctrl-C only leaves the view (docs/cluster.md).
    """
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
            hosts=tuple(split_hosts(hosts)),
            head=head,
            nodes=nodes,
            devices_per_node=devices_per_node,
            retries=retries,
        )
    )
