"""The parts of an attempt that are the same on one host and on several: hand the job in, hold its end, and conclude."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from verl_musa.checks import Result
from verl_musa.checks import Status as Verdict
from verl_musa.cluster.jobs_api import JobsApi, RayApiError
from verl_musa.diagnose.triage_card import Card
from verl_musa.errors import HostError, VerlMusaError
from verl_musa.observe.display import Display
from verl_musa.observe.proof import mccl_calls, read_proofs
from verl_musa.run import gate
from verl_musa.run.finish import write_metrics
from verl_musa.run.follow import Follower, Limits
from verl_musa.run.ground import Ground
from verl_musa.run.launch import expectation, job_command, job_runtime_env
from verl_musa.run.patches import collect, plan_digest
from verl_musa.run.prepare import Prepared
from verl_musa.run.record import Status
from verl_musa.run.report import (
    check_accepted,
    differences_allowed,
    print_card,
    print_summary,
    summarize,
    write_report,
)
from verl_musa.run.signals import InterruptedRunError, Signals
from verl_musa.run.triage import triage_end


def attempt(signals: Signals, work: Callable[[], None], end: Callable[[Status, str | None], None]) -> None:
    """Do the work of an attempt; whatever happens, ``end`` is told how it ended and why, with signals held.

    Raises:
        BaseException: whatever the work raised.
    """
    status: Status = "interrupted"
    reason: str | None = "interrupted"
    try:
        work()
        signals.hold()
        status, reason = "succeeded", None
    except InterruptedRunError as interrupt:
        reason = str(interrupt)
        raise
    except VerlMusaError as error:
        status, reason = "failed", str(error)
        raise
    except BaseException as error:
        status, reason = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        signals.hold()
        end(status, reason)


def submit(api: JobsApi, prepared: Prepared, own: dict[str, str], python: str | None = None) -> str:
    """Hand the job in and note it in the record; ``python``: the interpreter on the hosts. Returns its submission id.

    Raises:
        HostError: Ray does not take it.
    """
    run, record = prepared.run, prepared.record
    submission_id = f"{run.path.name}-{record.attempt.number}"
    environment: dict[str, Any] = job_runtime_env(prepared.resolved, own)
    try:
        api.submit(
            shlex.join(job_command(prepared.recipe, run, python)),
            submission_id=submission_id,
            runtime_env=environment,
            metadata={"verl_musa_run": run.path.name},
        )
    except RayApiError as error:
        raise HostError("Ray does not take the job", where=api.url, found=str(error),
                        expected="a submission id", fix=f"read the logs of Ray in {run.logs}") from error  # fmt: skip
    record.attempt.submission_id = submission_id
    record.set_status("running")
    record.save(run.record)
    return submission_id


def follow_and_hold(
    prepared: Prepared,
    ground: Ground,
    submission_id: str,
    display: Display,
    *,
    limits: Limits,
    tend: Callable[[], None],
) -> None:
    """Follow the job to its end, and hold what it did against what was asked for.

    Raises:
        JobFailedError: it failed, or is not what it claims.
    """
    run, record = prepared.run, prepared.record
    Follower(
        run=run,
        record=record,
        ground=ground,
        display=display,
        submission_id=submission_id,
        expected={**expectation(prepared.recipe), "patch_plan": plan_digest(prepared.patches)},
        differences=differences_allowed(prepared.recipe),
        limits=limits,
        tend=tend,
        gate_only=prepared.gate == "only",
    ).follow()
    record.device.mccl_calls = mccl_calls(run.proofs)
    collect(run, record, prepared.patches)
    rows = write_metrics(run, record)
    gate.require_ran(run, prepared.gate)
    if prepared.gate != "only":
        check_accepted(prepared.recipe, record, summarize(rows, record))


def conclude(
    prepared: Prepared,
    status: Status,
    reason: str | None,
    display: Display,
    problems: list[str],
    *,
    settled: Callable[[], None] = lambda: None,
    show: bool = True,
) -> Card | None:
    """Write how the attempt ended: record, metrics, gate, triage and report; and show it. Returns the card of the triage, if any.

    Args:
        prepared: the run.
        status: how it ended.
        reason: why.
        display: closed here.
        problems: sentences about what could not be done so far; shown with those that are found here.
        settled: called once the record is written.
        show: print the summary and the card; else the notes only.
    """
    run, record = prepared.run, prepared.record
    record.device.mccl_calls = mccl_calls(run.proofs)
    record.device.workers = read_proofs(run.proofs)
    try:
        record.summary = summarize(write_metrics(run, record), record)
    except VerlMusaError as error:
        problems.append(str(error))
    try:
        gate.settle(run, record, prepared.gate, prepared.golden)
    except VerlMusaError as error:
        problems.append(str(error))
    record.set_status(status, reason)
    record.save(run.record)
    settled()
    card = triage_end(run, record, problems.append)
    display.close()
    for problem in problems:
        display.note(problem)
    write_report(run, record, card)
    if show and prepared.gate != "only":
        print_summary(run, record)
    if show and card is not None:
        print_card(card, Console(stderr=True, highlight=False) if prepared.gate == "only" else None)
    return card


def tell_results(what: str, results: Sequence[Result], display: Display) -> None:
    """Show what is not OK, host by host.

    Raises:
        HostError: a check failed.
    """
    bad = [result for result in results if result.status is not Verdict.OK]
    for result in bad:
        display.note(
            f"{result.status.value} {result.host} {result.check}: {result.evidence}"
            + (f" -> {result.fix}" if result.fix else "")
        )
    display.note(f"{what}: {len(results)} checks, {len(bad)} not OK")
    failed = [result for result in bad if result.status is Verdict.FAIL]
    if failed:
        first = failed[0]
        raise HostError(
            f"{what}: {len(failed)} checks failed, first {first.check}",
            where=first.host or None,
            found=first.evidence,
            expected=first.looks_at,
            fix=first.fix,
        )
