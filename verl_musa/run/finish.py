"""The end of an attempt, whoever brings it about: the runner, its guardian, or a later resume."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

from verl_musa.cluster.logs import keep_logs
from verl_musa.cluster.processes import OwnedProcesses, remove_shared_memory
from verl_musa.observe.metrics import Rows, fold, read_rows, write_rows
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import RunRecord

TERM_S = 8.0
KILL_S = 30.0


def clean_up(
    run: RunDirectory, record: RunRecord, owned: OwnedProcesses, *, term_s: float = TERM_S
) -> list[str]:
    """End every process of the run, keep Ray's logs, and remove what it left in memory and temporary folders.

    Safe to call again. Returns one sentence for each thing that could not be done.
    """
    problems: list[str] = []
    mapped = owned.shared_memory()
    survivors = owned.end(term_s=term_s, kill_s=KILL_S)
    problems += [f"process {survivor} could not be ended" for survivor in survivors]
    for attempt in record.attempts:
        if attempt.ray is None:
            continue
        temp_dir = Path(attempt.ray.temp_dir)
        if not temp_dir.is_dir():
            continue
        for session in temp_dir.glob("session_[0-9]*"):
            kept = run.logs / "ray" / f"attempt-{attempt.number}"
            cut = keep_logs(session / "logs", kept)
            problems += [f"log {name} was shortened" for name in cut]
        shutil.rmtree(temp_dir, ignore_errors=True)
        if temp_dir.exists():
            problems.append(f"{temp_dir} could not be removed")
    since = datetime.fromisoformat(record.created_at).timestamp()
    remove_shared_memory(mapped, owned.pids_seen, since=since)
    return problems


def all_rows(run: RunDirectory, record: RunRecord) -> Rows:
    """The metrics of all attempts, folded."""
    return fold(
        (attempt.resumed_from_step, read_rows(run.logs / attempt.metrics_name)) for attempt in record.attempts
    )


def write_metrics(run: RunDirectory, record: RunRecord) -> Rows:
    """Write ``metrics.jsonl`` from the attempts' own files and return its rows."""
    rows = all_rows(run, record)
    write_rows(run.metrics, rows)
    return rows
