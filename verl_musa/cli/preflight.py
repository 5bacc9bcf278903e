"""``verl-musa preflight``: are these hosts fit to run a recipe together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verl_musa.cli.options import (
    AsJson,
    DevicesPerNode,
    Head,
    Hosts,
    Nodes,
    Sets,
    Site,
    Variants,
    split_hosts,
)


def preflight(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe, as for `run`; without one the hosts are looked at by themselves."),
    ] = None,
    *,
    hosts: Hosts = None,
    head: Head = None,
    nodes: Nodes = None,
    devices_per_node: DevicesPerNode = None,
    site: Site = None,
    variants: Variants = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Look at all hosts over ssh, before anything is started: access, clocks, versions, devices, files, network, ports.

    `run` does the same first. Nothing is started; one file in the shared folder comes and goes. docs/preflight.md says what each
    check looks at.

    Exit code: 0 when nothing failed (warnings are shown), 2 when something failed, 3 when nothing failed but something could
    not be looked at.
    """
    from verl_musa.checks import exit_code, to_json
    from verl_musa.cluster.hosts import chosen, devices_of, hosts_of
    from verl_musa.cluster.preflight import look, render
    from verl_musa.cluster.preflight.locking import lock_results
    from verl_musa.cluster.ssh import Ssh
    from verl_musa.recipe import load_recipe, load_site
    from verl_musa.run.layout import Layout

    place = load_site(site)
    known = hosts_of(place, split_hosts(hosts), head=head)
    resolved, lock, remote = None, [], Ssh(place)
    if recipe is None:
        known, _ = chosen(known, nodes)
    else:
        loaded = load_recipe(recipe, variants=variants or ())
        known, spares = chosen(known, nodes or (None if hosts else loaded.cluster.nodes))
        devices = devices_of(known, devices_per_node, loaded.cluster.devices_per_node)
        shared = Path(place.shared or Path.cwd())
        layout = Layout(place, shared, shared / "runs", known, spares, devices)
        run_dir = layout.runs_dir / loaded.name / "RUN-ID"
        resolved = layout.resolve(loaded, run_dir, sets or ())
        lock = lock_results(layout.as_written(loaded, run_dir, sets or ()), place, remote, known[0])
    with Console(stderr=True).status("preflight") as status:
        found = look(place, known, resolved, remote, status.update, hold_lock=False)
    results = [*found.results, *lock]
    if as_json:
        typer.echo(json.dumps(to_json(results), indent=2, ensure_ascii=False))
    else:
        render(results, Console())
    raise typer.Exit(exit_code(results))
