"""``verl-musa cluster``: a Ray on several hosts, up, looked at and down."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from verl_musa.cli.options import DevicesPerNode, Head, Hosts, Nodes, Site, split_hosts

if TYPE_CHECKING:
    from verl_musa.cluster.bring_up import Known
    from verl_musa.cluster.fleet import Answered

app = typer.Typer(help="A Ray on several hosts: up, status, down (docs/cluster.md).", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (with a 'schema' number).")]
JSON_SCHEMA = 1
LOST, DOWN = 1, 3


def _note(text: str) -> None:
    typer.echo(text, err=True)


@app.command("up")
def up(
    *,
    cluster: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the cluster; by default a new one.")
    ] = None,
    hosts: Hosts = None,
    head: Head = None,
    nodes: Nodes = None,
    devices_per_node: DevicesPerNode = None,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(
            "--cpus-per-node",
            min=1,
            metavar="N",
            help="Logical CPUs that Ray hands out on each host; by default those of the smallest.",
        ),
    ] = None,
    site: Site = None,
) -> int:
    """Start Ray on the hosts of the site, head first, and wait until all are there, twice.

    Asked again with the same --id it changes nothing. A Ray that it did not start is never touched.
    Exit code: 0 when the cluster is up, 2 when it is not; then nothing of it is left running.
    """  # fmt: skip
    from verl_musa.cluster.bring_up import (
        Cluster,
        bring_up,
        check_id,
        forget_record,
        keep_record,
        owner,
        take_down,
    )
    from verl_musa.cluster.fleet import Fleet, members
    from verl_musa.cluster.hosts import chosen, devices_of, hosts_of
    from verl_musa.cluster.ssh import Ssh
    from verl_musa.errors import HostError
    from verl_musa.recipe import load_site

    name = check_id(cluster or f"cluster-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}")
    facts = load_site(site)
    some, _ = chosen(hosts_of(facts, split_hosts(hosts), head=head), nodes)
    fleet = Fleet(Ssh(facts), facts.python)
    found = members(fleet, some, facts, time.time)
    wanted = Cluster(
        cluster=name,
        owner=owner(),
        members=found,
        num_gpus=devices_of(some, devices_per_node),
        num_cpus=cpus_per_node or min(member.cpus for member in found),
        ports=facts.ray,
    )
    was_there = {
        name: a.answer is not None and a.answer.get("state") == "up"
        for name, a in _ask(wanted.cluster, some, fleet).items()
    }
    keep_record(wanted, facts)
    try:
        bring_up(wanted, fleet, _note)
    except (HostError, KeyboardInterrupt):
        new = [host for host in some if not was_there[host.name]]
        _note(f"taking down what has come up on {len(new)} hosts")
        if not take_down(wanted.cluster, new, fleet, _note) and not any(was_there.values()):
            forget_record(wanted.cluster, facts)
        raise
    Console().print(
        _table(
            [
                (m.name, m.address, "head" if m is wanted.head else "worker", "up", str(wanted.num_gpus))
                for m in found
            ]
        )
    )
    typer.echo(
        f"cluster {wanted.cluster} is up: {wanted.url}; end it with `verl-musa cluster down {wanted.cluster}`"
    )
    return 0


def _ask(cluster: str, some: Sequence[Any], fleet: Any) -> dict[str, Answered]:
    from verl_musa.cluster.bring_up import statuses

    return statuses(cluster, some, fleet)


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for column in ("host", "address", "role", "state", "devices"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


@app.command("status")
def status(
    cluster: Annotated[
        str | None, typer.Argument(metavar="ID", help="By default all clusters of the site.")
    ] = None,
    *,
    as_json: AsJson = False,
    site: Site = None,
) -> int:
    """Say of each host whether its part of the cluster runs.

    Exit code: 0 when all of it is up, 1 when a part of it is not, 2 when there is no such cluster, 3 when a host does not answer.
    """  # fmt: skip
    from verl_musa.cluster.fleet import Fleet
    from verl_musa.cluster.ssh import Ssh
    from verl_musa.recipe import load_site

    facts = load_site(site)
    fleet = Fleet(Ssh(facts), facts.python)
    shown, code = [], 0
    for known in _named(cluster, facts):
        rows, one = _look(known, fleet)
        code = max(code, one)
        shown.append({"cluster": known.cluster, "owner": known.owner, "url": known.url, "hosts": rows})
        if not as_json:
            typer.echo(f"cluster {known.cluster} of {known.owner}: {known.url}")
            Console().print(
                _table(
                    [
                        [str(row[key]) for key in ("host", "address", "role", "state", "devices")]
                        for row in rows
                    ]
                )
            )
    if as_json:
        typer.echo(json.dumps({"schema": JSON_SCHEMA, "exit_code": code, "clusters": shown}, indent=2))
    elif not shown:
        typer.echo("no clusters")
    return code


def _named(cluster: str | None, facts: Any) -> list[Known]:
    from verl_musa.cluster.bring_up import known_clusters
    from verl_musa.errors import HostError

    known = known_clusters(facts)
    if cluster is None:
        return list(known.values())
    fitting = (
        [known[cluster]]
        if cluster in known
        else [one for name, one in known.items() if name.startswith(cluster)]
    )
    if len(fitting) != 1:
        raise HostError(
            f"no record of a cluster {cluster}" if not fitting else f"several clusters begin with {cluster}",
            where=str(facts.source or "site.yaml"),
            found=", ".join(list(known)[-5:]) or "none",
            expected="the id of a cluster",
            fix="`verl-musa cluster status` lists them",
        )
    return fitting


def _look(known: Known, fleet: Any) -> tuple[list[dict[str, Any]], int]:
    """A row for each host, and the exit code."""
    from verl_musa.cluster.bring_up import statuses
    from verl_musa.cluster.jobs_api import JobsApi, RayApiError

    answers = statuses(known.cluster, known.hosts, fleet)
    try:
        nodes = {
            str(node.get("node_ip")): str(node.get("state"))
            for node in JobsApi(known.url).nodes()
            if node.get("state") == "ALIVE"
        }
        reached = True
    except RayApiError:
        nodes, reached = {}, False
    rows, code = [], 0
    for host in known.hosts:
        one = answers[host.name]
        address = next((a for a, name in known.addresses.items() if name == host.name), "?")
        if not one.ok or one.answer is None:
            state, code = f"unknown: {one.why}", DOWN
        elif one.answer["state"] != "up":
            state, code = {"none": "not there", "ended": "ended"}[one.answer["state"]], max(code, LOST)
        elif reached and address not in nodes:
            state, code = "up, but not in Ray", max(code, LOST)
        else:
            state = "up"
        rows.append(
            {
                "host": host.name,
                "address": address,
                "role": "head" if host.head else "worker",
                "state": state,
                "devices": known.num_gpus,
            }
        )
    return rows, code if reached or code else LOST


@app.command("down")
def down(
    cluster: Annotated[str, typer.Argument(metavar="ID", help="A cluster of `cluster status`.")],
    *,
    hosts: Hosts = None,
    site: Site = None,
) -> int:
    """End a cluster on all its hosts: only processes that it started. Safe to call again.

    Exit code: 0 when nothing of it is left, 3 when a host does not answer (its record is then kept).
    """
    from verl_musa.cluster.bring_up import check_id, forget_record, known_clusters, take_down
    from verl_musa.cluster.fleet import Fleet
    from verl_musa.cluster.hosts import hosts_of
    from verl_musa.cluster.ssh import Ssh
    from verl_musa.recipe import load_site

    facts = load_site(site)
    known = known_clusters(facts).get(check_id(cluster))
    # Without a record (taken down before, or lost) the hosts themselves still know what they started.
    every = known.hosts if known is not None else hosts_of(facts, split_hosts(hosts))
    wanted = set(split_hosts(hosts))
    some = [host for host in every if not wanted or host.name in wanted]
    if take_down(cluster, some, Fleet(Ssh(facts), facts.python), _note):
        return DOWN
    if len(some) == len(every):
        forget_record(cluster, facts)
    typer.echo(f"cluster {cluster}: nothing of it is left on {len(some)} hosts")
    return 0
