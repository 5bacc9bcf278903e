"""``verl-musa preflight``: are these hosts fit to run a recipe together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verl_musa.cli.options import AsJson, Head, Hosts, Sets, Site, Variants, split_hosts


def preflight(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe, as for `run`; without one the hosts are looked at by themselves."),
    ] = None,
    *,
    hosts: Hosts = None,
    head: Head = None,
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
    from verl_musa.cluster.hosts import hosts_of
    from verl_musa.cluster.preflight import render, run_preflight
    from verl_musa.cluster.ssh import Ssh
    from verl_musa.recipe import load_recipe, load_site, resolve

    place = load_site(site)
    chosen = hosts_of(place, split_hosts(hosts), head=head)
    resolved = None
    if recipe is not None:
        loaded = load_recipe(recipe, variants=variants or ())
        resolved = resolve(loaded, run_dir=Path("runs", loaded.name, "RUN-ID"), site=place, sets=sets or ())
        chosen = chosen if hosts else chosen[: max(1, resolved.recipe.cluster.nodes)]
    console = Console(stderr=True)
    with console.status("preflight") as status:
        results = run_preflight(place, chosen, resolved, Ssh(place), status.update)
    if as_json:
        typer.echo(json.dumps(to_json(results), indent=2, ensure_ascii=False))
    else:
        render(results, Console())
    raise typer.Exit(exit_code(results))
