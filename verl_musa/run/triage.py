"""Triage of a run: by itself where it failed, and at any time later by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from verl_musa.diagnose.triage_card import Card, Where
from verl_musa.errors import RunError, VerlMusaError
from verl_musa.fileio import write_json
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import HostFacts, RunRecord, load_record

if TYPE_CHECKING:
    from verl_musa.diagnose.triage_sources import Clock, RunFacts

SECONDS = 60.0
"""Longest that a run which failed waits for its triage."""


def triage_run(run: RunDirectory, record: RunRecord, *, seconds: float | None = None) -> Card:
    """Triage the last attempt of a run."""
    from verl_musa.diagnose import triage
    from verl_musa.diagnose.triage_sources import RunFacts

    attempt = record.attempt
    clocks, notes = _clocks(run.clocks)
    facts = RunFacts(
        path=run.path,
        run_id=record.run_id,
        host=record.host,
        status=record.status,
        exit_reason=record.exit_reason or "",
        started=_seconds(attempt.started_at),
        ended=_seconds(attempt.ended_at),
        attempt=attempt.number,
        clocks=clocks,
        hosts={host.name: host.address for host in attempt.hosts},
    )
    card = triage.triage_run(facts, seconds=seconds)
    return replace(card, where=_named(card.where, attempt.hosts), notes=(*card.notes, *notes))


def _named(where: Where, hosts: Sequence[HostFacts]) -> Where:
    """The place with the host's name, where the logs have its address or what it calls itself."""
    for host in hosts:
        if where.host in {host.address, host.ssh, host.hostname} and where.host != host.name:
            text = where.text.replace(f"host {where.host}", f"host {host.name} ({host.address})", 1)
            return replace(where, host=host.name, text=text)
    return where


def triage_named(run: RunDirectory) -> Card:
    """Triage a run by its directory. A record of another version is read as far as it can be, and the card says so."""
    from verl_musa.diagnose import triage
    from verl_musa.diagnose.triage_text import shown

    try:
        record = load_record(run.record)
    except RunError as error:
        card = triage.triage_run(_raw_facts(run))
        return replace(card, notes=(*card.notes, shown(f"{error.message}: {error.found}")))
    return triage_run(run, record)


def _raw_facts(run: RunDirectory) -> RunFacts:
    """What a triage needs, out of a record that does not fit the schema."""
    from verl_musa.diagnose.triage_sources import RunFacts

    try:
        value = json.loads(run.record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        value = {}
    raw = value if isinstance(value, dict) else {}
    host, status, reason = (str(raw.get(key) or "") for key in ("host", "status", "exit_reason"))
    attempts = [int(path.name[8:]) for path in run.logs.glob("ray/attempt-*") if path.name[8:].isdigit()]
    return RunFacts(run.path, run.path.name, host, status, reason, attempt=max(attempts, default=1))


def triage_end(run: RunDirectory, record: RunRecord, note: Callable[[str], None]) -> Card | None:
    """The card of a run that failed, kept beside its record; None, and no card of an earlier attempt, where it did not.

    Whatever goes wrong here is noted and hides nothing.
    """
    try:
        run.triage.unlink(missing_ok=True)
        if record.status != "failed":
            return None
        card = triage_run(run, record, seconds=SECONDS)
        write_json(run.triage, card.to_json())
    except Exception as error:  # noqa: BLE001  (the run's own error is what the user has to see)
        said = error.message if isinstance(error, VerlMusaError) else f"{type(error).__name__}: {error}"
        note(f"the triage itself failed: {said}")
        return None
    return card


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _clocks(path: Path) -> tuple[dict[str, Clock], list[str]]:
    """The clocks that the run recorded, and a note where they cannot be read."""
    from verl_musa.diagnose.triage_sources import clocks_of
    from verl_musa.diagnose.triage_text import shown

    if path.is_symlink() or not path.is_file():
        return {}, []
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return clocks_of(value["hosts"], path.name), []
    except (RunError, OSError, ValueError, KeyError, TypeError) as error:
        return {}, [
            shown(
                f"{path.name} cannot be read, so the clocks are taken for equal: {error}".partition("\n")[0]
            )
        ]
