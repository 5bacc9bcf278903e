"""``verl-musa env``: what this machine has."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console


def env(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (with a 'schema' number) instead of tables.")
    ] = False,
) -> None:
    """Show versions, devices and limits of this machine, each with its source.

    Nothing heavy is imported. What cannot be known is shown as unknown with the reason, never guessed.
    """
    from verl_musa.env import collect, render

    report = collect()
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        render(report, Console())
