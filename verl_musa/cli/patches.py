"""`verl-musa patches`: what the series does, whether it fits, and how it is brought up to date."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from verl_musa.patching import Patch
    from verl_musa.patching.verify import Report

app = typer.Typer(
    help="The patches that MUSA needs in verl, SGLang, Megatron-Core and torch.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
SHORT = 12


@app.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """List the series in the order in which it is applied."""
    from verl_musa.patching import load_series

    series = load_series()
    if as_json:
        _print_json([_described(patch) for patch in series.patches])
        return
    table = Table("#", "patch", "upstream", "devices", "what is different", title=f"series {series.digest}")
    for number, patch in enumerate(series.patches, start=1):
        upstream = f"{patch.distribution} {patch.versions}"
        table.add_row(str(number), patch.id, upstream, ", ".join(patch.devices), patch.summary)
    Console().print(table)


@app.command()
def show(patch_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False) -> None:
    """Show one patch: targets, fingerprints, reason, source and when it can go."""
    from verl_musa.patching import load_series

    series = load_series()
    patch = series.patch(patch_id)
    if as_json:
        _print_json(_described(patch))
        return
    remove = patch.remove_when
    checks = [text for text in (remove.version, remove.defines) if text]
    rows = [
        ("patch", patch.id),
        ("file", str(series.file(patch))),
        ("summary", patch.summary),
        ("upstream", f"{patch.distribution} {patch.versions}"),
        ("devices", ", ".join(patch.devices)),
        ("reason", patch.reason),
        ("source", patch.source),
        ("without it", patch.without),
        (
            "remove when",
            remove.text + (f" (checked: {', '.join(checks)})" if checks else " (checked by hand)"),
        ),
    ]
    table = Table(show_header=False, box=None, pad_edge=False)
    for label, text in rows:
        table.add_row(label, text)
    kinds = {change.target: change.kind for change in patch.changes}
    for target, versions in patch.fingerprints.items():
        table.add_row(kinds.get(target, "watch"), target)
        for version, value in versions.items():
            table.add_row("", f"{version}  {value}")
    Console().print(table, soft_wrap=False)


@app.command()
def verify(
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIST==VERSION", help="Check this version (or wheel, or sdist) instead; repeatable."
        ),
    ] = None,
    supported: Annotated[bool, typer.Option("--supported", help="Check every supported version.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check all fingerprints without importing upstream.

    Exit code 1: something has drifted. 2: a supported version could not be downloaded, so nothing is known about it.
    """
    from verl_musa.patching import load_series
    from verl_musa.patching.verify import verify as run_verify

    report = run_verify(load_series(), against=against or (), supported=supported)
    if as_json:
        ok = not report.drifted and not report.unchecked
        _print_json({**asdict(report), "ok": ok})
    else:
        _print_report(report)
    if report.drifted:
        raise typer.Exit(1)
    if report.unchecked:
        raise typer.Exit(2)


@app.command()
def record(
    patch_id: Annotated[str, typer.Argument(metavar="ID")],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DIST==VERSION", help="Version, wheel or sdist to record; default: the installed one."
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write them into the patch file.")] = False,
) -> None:
    """Print the fingerprints of a patch's targets at one version, once the code has been compared."""
    from verl_musa.patching import load_series, recorder
    from verl_musa.patching.sources import open_requirement, require_installed

    series = load_series()
    patch = series.patch(patch_id)
    requirement = against or f"{patch.distribution}=={require_installed(patch.distribution).version}"
    with open_requirement(requirement) as source:
        fingerprints = recorder.record(patch, source)
    if write:
        recorder.write(series.file(patch), fingerprints)
        typer.echo(f"{series.file(patch)}: recorded {requirement}")
    else:
        typer.echo(recorder.as_source(fingerprints, {}, ""))


def _described(patch: Patch) -> dict[str, Any]:
    return {
        "id": patch.id,
        "summary": patch.summary,
        "distribution": patch.distribution,
        "versions": patch.versions,
        "devices": list(patch.devices),
        "reason": patch.reason,
        "source": patch.source,
        "without": patch.without,
        "remove_when": asdict(patch.remove_when),
        "changes": [{"target": change.target, "kind": change.kind} for change in patch.changes],
        "fingerprints": {target: dict(versions) for target, versions in patch.fingerprints.items()},
    }


def _print_report(report: Report) -> None:
    table = Table(title=f"series {report.series}")
    table.add_column("patch", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("target", overflow="fold")
    upstream = ""
    for row in report.rows:
        if (found := f"{row.distribution} {row.version}".strip()) != upstream:
            upstream = found
            table.add_section()
            table.add_row(f"[bold]{escape(upstream)}")
        note = row.note
        if row.status == "drift":
            expected = ", ".join(value[:SHORT] for value in row.expected) or "-"
            note = f"{row.note}: found {row.found[:SHORT]}, expected {expected}; {row.where}"
        table.add_row(row.patch, str(row.status), escape("\n".join(filter(None, [row.target, note]))))
    console = Console()
    console.print(table)
    for gone in report.removable:
        console.print(f"can be removed: {gone.patch} at {gone.distribution} {gone.version}: {gone.condition}")
    for target, ids in report.doubled.items():
        console.print(f"touched by more than one patch: {target}: {', '.join(ids)}")
    for version in report.unchecked:
        console.print(f"could not be checked: {version}", style="bold red")
    if report.drifted:
        drifted = ", ".join(dict.fromkeys(row.patch for row in report.drifted))
        console.print(f"drifted: {drifted}\nnext step: docs/upgrading.md", style="bold red")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))
