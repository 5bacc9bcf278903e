"""``verl-musa triage``: of everything that went wrong in the logs of a job, what went wrong first."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from verl_musa.cli.options import RunsDir

if TYPE_CHECKING:
    from verl_musa.diagnose.triage_card import Card
    from verl_musa.diagnose.triage_sources import Clock


def triage(
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN | FILES…",
            help="A run (its id, a unique prefix of it, or its path), or log files and folders, plain or .gz.",
        ),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (with a 'schema' number).")] = False,
    runs_dir: RunsDir = Path("runs"),
    ahead: Annotated[
        list[str] | None,
        typer.Option(
            "--ahead",
            metavar="HOST=SECONDS",
            help="How far the clock of a host is ahead of the others; for files. May be given again.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Leave out what is older (2026-11-30T18:05:00, in UTC where it names no zone): of an earlier job on the same Ray; for files.",
        ),
    ] = None,
) -> None:
    """Read logs, and say what went wrong first, where, why that is believed, and what to do.

    Exit code: 0 when nothing abnormal was found, 2 when something went wrong that is known, 3 when something went wrong that no rule
    knows. docs/triage.md describes the rules.
    """
    from verl_musa.diagnose.triage_card import render

    card = _card(subjects, runs_dir, _clocks(ahead or []), _since(since))
    if as_json:
        typer.echo(json.dumps(card.to_json(), indent=2, ensure_ascii=False))
    else:
        render(card, Console(highlight=False))
    raise typer.Exit(card.exit_code)


def _card(subjects: list[str], runs_dir: Path, clocks: dict[str, Clock], since: float | None) -> Card:
    from verl_musa.diagnose.triage import triage_paths
    from verl_musa.run.directory import RECORD, RunDirectory, find_any_run
    from verl_musa.run.triage import triage_named

    paths = [Path(subject) for subject in subjects]
    if len(paths) == 1 and (paths[0] / RECORD).is_file():
        return triage_named(RunDirectory(paths[0].resolve()))
    if len(paths) == 1 and not paths[0].exists() and "/" not in subjects[0]:
        return triage_named(find_any_run(runs_dir, subjects[0]))
    return triage_paths(paths, clocks=clocks, since=since)


def _since(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"--since {text}: expected a time such as 2026-11-30T18:05:00") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _clocks(given: list[str]) -> dict[str, Clock]:
    from verl_musa.diagnose.triage_sources import Clock

    clocks = {}
    for text in given:
        host, _, seconds = text.rpartition("=")
        try:
            clocks[host] = Clock(ahead=float(seconds))
        except ValueError as error:
            raise typer.BadParameter(f"--ahead {text}: expected HOST=SECONDS") from error
        if not host:
            raise typer.BadParameter(f"--ahead {text}: expected HOST=SECONDS")
    return clocks
