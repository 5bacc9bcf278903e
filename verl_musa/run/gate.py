"""The day-0 correctness gate as part of a run: whether it is due, and what becomes of its verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_musa.checks import Result, Status, exit_code
from verl_musa.diagnose import (
    JOB_FILE,
    calls_for_job,
    failures,
    golden_results,
    job_verdict,
    read_gate,
    write_gate,
)
from verl_musa.errors import JobFailedError
from verl_musa.fileio import write_json
from verl_musa.recipe import Resolved
from verl_musa.run import GateMode
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import GateFacts, RunRecord

VARIABLE = "VERL_MUSA_GATE"
"""Tells the job's own part (``verl_musa/device/gate.py``) what to do: ``before`` or ``only``."""

__all__ = [
    "JOB_FILE",
    "V1",
    "VARIABLE",
    "due",
    "golden",
    "hand_over",
    "require_ran",
    "settle",
    "stopped_by_gate",
    "variables",
]

GOLDEN_FILE = "gate-golden.json"
"""Where the job finds the golden pairs that it has to score, below the logs folder."""

V1 = "verl.trainer.main_ppo"


def due(asked: GateMode, config: Mapping[str, Any], module: str, *, resumed_from: int) -> GateMode:
    """What an attempt does: the gate belongs before step 1, and into verl's current trainer.

    Args:
        asked: what the user asks for.
        config: verl's config.
        module: the recipe's trainer module.
        resumed_from: the step after which the attempt goes on.
    """
    fits = module == V1 and bool(config.get("trainer", {}).get("use_v1", False))
    return asked if fits and resumed_from == 0 else "off"


def variables(mode: GateMode) -> dict[str, str]:
    """What the job's processes carry."""
    return {} if mode == "off" else {VARIABLE: mode}


def golden(resolved: Resolved) -> list[Result]:
    """Check the reward function on the recipe's golden pairs, before anything is started."""
    return golden_results(resolved)


def hand_over(resolved: Resolved, run: RunDirectory) -> None:
    """Write the golden pairs that only the job can score to where it looks for them."""
    if calls := calls_for_job(resolved):
        write_json(run.logs / GOLDEN_FILE, calls)


def settle(
    run: RunDirectory, record: RunRecord, mode: GateMode, golden_pairs: Sequence[Result]
) -> list[Result]:
    """Put the job's verdicts and the golden pairs' together: into ``gate.json`` and the record. Returns all results.

    Without a verdict of the job (it ended earlier) only the golden pairs are in it.
    """
    if mode == "off":
        return read_gate(run.gate)
    verdict = job_verdict(run.logs)
    found = verdict.results if verdict else []
    # What the job could score replaces what could not be scored without it.
    scored = {result.check for result in found}
    results = [
        *found,
        *(pair for pair in golden_pairs if pair.check not in scored or pair.status is Status.FAIL),
    ]
    write_gate(run.gate, record.recipe.name, results, verdict)
    counts = {status.value: sum(result.status is status for result in results) for status in Status}
    record.gate = GateFacts(
        mode=mode,
        ran=verdict is not None and not verdict.skipped,
        exit_code=exit_code(results),
        counts=counts,
        failed=[result.check for result in failures(results)],
        seconds=verdict.figures.get("seconds") if verdict else None,
    )
    return results


def stopped_by_gate(run: RunDirectory) -> JobFailedError | None:
    """The error of a job whose gate found something; None where it found nothing or wrote no verdicts."""
    verdict = job_verdict(run.logs)
    failed = failures(verdict.results) if verdict else []
    if not failed:
        return None
    return JobFailedError(
        f"the gate failed before step 1: {', '.join(result.check for result in failed)}",
        where=str(run.gate),
        found="; ".join(result.evidence for result in failed),
        expected="no check of the gate to fail",
        fix=f"{failed[0].fix}; docs/gate.md tells more, --no-gate trains all the same",
    )


def require_ran(run: RunDirectory, mode: GateMode) -> None:
    """Check, after the job has ended well, that its gate did run and found nothing.

    Raises:
        JobFailedError: a check failed, or the job never wrote verdicts.
    """
    if mode == "off":
        return
    if error := stopped_by_gate(run):
        raise error
    if job_verdict(run.logs) is None:
        raise JobFailedError(
            "the gate did not run although it was asked for",
            where=str(run.logs),
            found="no gate.json of the job",
            expected="verdicts, written before step 1",
            fix=f"check that the plugin verl_musa.device.plugin loads in the job and that {VARIABLE} reaches it",
        )
