"""``verl-musa site``: the facts of the machines at hand."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from verl_musa.cli.options import AsJson, Head, Hosts, Site, split_hosts

app = typer.Typer(help="Check site.yaml, the facts of the machines at hand.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `site check` a verb of its own, though it is the only one."""


@app.command("check")
def check(*, site: Site = None, hosts: Hosts = None, head: Head = None, as_json: AsJson = False) -> None:
    """Check site.yaml and the hostfile by themselves; no host is asked (`verl-musa preflight` does that).

    Exit code: 0 when nothing failed (warnings are shown), 2 when something failed.
    """
    from verl_musa.checks import exit_code, render, to_json
    from verl_musa.cluster.site_check import check_site

    results = check_site(site, split_hosts(hosts), head)
    if as_json:
        typer.echo(json.dumps(to_json(results), indent=2, ensure_ascii=False))
    else:
        render(results, Console())
    raise typer.Exit(exit_code(results))
