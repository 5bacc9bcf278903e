"""``verl-musa follow | status | stop | resume | logs | list``: runs that are under way, or were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from verl_musa.cli.options import Head, Hosts, Retries, RunsDir, Site, split_hosts
from verl_musa.run import STALL_MINUTES, RunOptions, run_recipe

if TYPE_CHECKING:
    from verl_musa.recipe import Site as SiteFacts
    from verl_musa.run.directory import RunDirectory

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run: its id, a unique prefix of it, or its path.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (with a 'schema' number).")]
JSON_SCHEMA = 1
ABANDONED, SILENT = 1, 3


def _find(named: str, runs_dir: Path, site: Path | None) -> tuple[RunDirectory, SiteFacts]:
    """The run, and the site that it was made with unless another one is named."""
    from verl_musa.recipe import load_site
    from verl_musa.run.record import load_record
    from verl_musa.run.runs import find_named

    run = find_named(named, runs_dir, load_site(site))
    cluster = load_record(run.record).cluster
    its_own = Path(cluster.site) if cluster is not None and cluster.site else None
    return run, load_site(site or (its_own if its_own is not None and its_own.is_file() else None))


def follow(run: RunName, *, runs_dir: RunsDir = Path("runs"), site: Site = None) -> int:
    """Show a run until it ends. Ctrl-C leaves it, and changes nothing about the run.

    Exit code: that of the run; 130 when left.
    """
    from verl_musa.observe.display import open_display
    from verl_musa.run.signals import Signals
    from verl_musa.run.view import Viewer

    found, _ = _find(run, runs_dir, site)
    with Signals():
        return Viewer(found, open_display()).show()


def status(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run; by default the last ones.")] = None,
    *,
    as_json: AsJson = False,
    runs_dir: RunsDir = Path("runs"),
    site: Site = None,
) -> int:
    """Say how a run stands, and of each of its hosts whether its Ray runs.

    Exit code: 0; 1 when nobody works on a run that has not ended; 3 when a host does not answer.
    """
    from verl_musa.run.control import health, host_states
    from verl_musa.run.record import GOING_ON, load_record

    if run is None:
        return list_(as_json=as_json, count=5, runs_dir=runs_dir, site=site)
    found, facts = _find(run, runs_dir, site)
    record = load_record(found.record)
    now = health(found, record)
    shown: dict[str, Any] = {
        "schema": JSON_SCHEMA,
        "run": record.run_id,
        "path": str(found.path),
        "recipe": record.recipe.name,
        "status": now.status,
        "note": now.note,
        "step": _last_step(found),
        "total_steps": record.total_steps,
        "attempts": [
            {"number": a.number, "status": a.status, "resumed_from_step": a.resumed_from_step, "lost": a.lost}
            for a in record.attempts
        ],
        "hosts": [],
    }
    code = ABANDONED if now.status == "abandoned" else 0
    if record.status in GOING_ON or now.status == "abandoned":
        for name, one in host_states(record, facts).items():
            state = str(one.answer["state"]) if one.ok and one.answer is not None else f"unknown: {one.why}"
            code = code or (SILENT if not one.ok else 0)
            shown["hosts"].append({"host": name, "ray": state})
    if as_json:
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        _print_status(shown)
    return code


def _last_step(run: RunDirectory) -> int | None:
    from verl_musa.errors import RunError
    from verl_musa.observe.metrics import read_rows

    try:
        return max(read_rows(run.metrics), default=None)
    except RunError:
        return None


def _print_status(shown: dict[str, Any]) -> None:
    step = (
        "no step yet" if shown["step"] is None else f"step {shown['step']} of {shown['total_steps'] or '?'}"
    )
    typer.echo(f"{shown['run']}  {shown['recipe']}  {shown['status']}  {step}")
    if shown["note"]:
        typer.echo(f"  {shown['note']}")
    for attempt in shown["attempts"]:
        lost = f", lost {', '.join(attempt['lost'])}" if attempt["lost"] else ""
        typer.echo(
            f"  attempt {attempt['number']}: {attempt['status']}, from step {attempt['resumed_from_step'] + 1}{lost}"
        )
    for host in shown["hosts"]:
        typer.echo(f"  host {host['host']}: Ray {host['ray']}")
    typer.echo(f"  {shown['path']}")


def stop(run: RunName, *, runs_dir: RunsDir = Path("runs"), site: Site = None) -> int:
    """End a run: its job first, then the cluster that it started. Safe to call again.

    Exit code: 0 when nothing of it is left, 3 when a host does not answer.
    """
    from verl_musa.run import control

    found, facts = _find(run, runs_dir, site)
    return control.stop(found, facts, lambda text: typer.echo(text, err=True))


def resume(
    run: RunName,
    *,
    hosts: Hosts = None,
    head: Head = None,
    retries: Retries = 0,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override one key of verl's config; may be given again."
        ),
    ] = None,
    stall_minutes: Annotated[
        float, typer.Option("--stall-minutes", min=0.1, help="Longest time without a new training step.")
    ] = STALL_MINUTES,
    runs_dir: RunsDir = Path("runs"),
    site: Site = None,
) -> int:
    """Go on with a run after its last verified checkpoint: complete, readable, and with the hashes it was written with.

    The same as `verl-musa run RECIPE --resume RUN`; the recipe and its variants are the run's own.
    """
    from verl_musa.run.record import load_record

    found, facts = _find(run, runs_dir, site)
    record = load_record(found.record)
    name = record.recipe.folder + (f"@{'+'.join(record.recipe.variants)}" if record.recipe.variants else "")
    options = RunOptions(
        recipe=name,
        sets=tuple(sets or ()),
        resume=str(found.path),
        site=facts.source,
        runs_dir=runs_dir,
        stall_minutes=stall_minutes,
        gate="off" if record.gate is not None and record.gate.mode == "off" else "before",
        hosts=tuple(split_hosts(hosts)),
        head=head,
        retries=retries,
    )
    return run_recipe(options)


def list_(
    *,
    as_json: AsJson = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the latest last.")] = 20,
    runs_dir: RunsDir = Path("runs"),
    site: Site = None,
) -> int:
    """List the runs here and in the site's shared folder."""
    from verl_musa.recipe import load_site
    from verl_musa.run.control import health
    from verl_musa.run.runs import all_runs

    rows: list[dict[str, Any]] = []
    for run, record in list(all_runs(runs_dir, load_site(site)))[-count:]:
        if record is None:
            rows.append(
                {
                    "run": run.path.name,
                    "recipe": run.path.parent.name,
                    "status": "unreadable",
                    "step": None,
                    "started": "",
                    "path": str(run.path),
                }
            )
            continue
        now = health(run, record)
        rows.append(
            {
                "run": record.run_id,
                "recipe": record.recipe.name,
                "status": now.status,
                "step": _last_step(run),
                "started": record.created_at,
                "path": str(run.path),
            }
        )
    if as_json:
        typer.echo(json.dumps({"schema": JSON_SCHEMA, "runs": rows}, indent=2, ensure_ascii=False))
        return 0
    table = Table(show_edge=False, pad_edge=False)
    for column in ("run", "recipe", "status", "step", "started"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            *(
                "-" if row[key] is None else str(row[key])
                for key in ("run", "recipe", "status", "step", "started")
            )
        )
    Console().print(table if rows else "no runs")
    return 0


def logs(
    run: RunName,
    *,
    host: Annotated[str | None, typer.Option("--host", metavar="NAME", help="Only of this host.")] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            "--worker", metavar="PID", help="Of the Ray worker with this pid; by default the job's driver."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="FILE", help="Of this file, such as raylet.out.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=10_000, help="How many last lines.")] = 50,
    keep: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on showing new lines until Ctrl-C.")
    ] = False,
    files: Annotated[bool, typer.Option("--files", help="Name the files that there are.")] = False,
    runs_dir: RunsDir = Path("runs"),
    site: Site = None,
) -> int:
    """Show the last lines of a run's logs, of the hosts while it runs, of the run directory afterwards."""
    from verl_musa.run.logs import Wanted, show_logs

    found, facts = _find(run, runs_dir, site)
    wanted = Wanted(host=host, worker=worker, name=name, lines=lines, files=files)
    return show_logs(found, facts, wanted, typer.echo, keep=keep)
