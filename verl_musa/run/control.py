"""``stop``, ``status`` and ``list``: what becomes of a run, asked and told from outside."""

from __future__ import annotations

import getpass
import os
import platform
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from verl_musa.cluster.bring_up import forget_record, statuses, take_down
from verl_musa.cluster.fleet import Answered, Fleet
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.jobs_api import JobsApi
from verl_musa.cluster.processes import OwnedProcesses, same_process_runs
from verl_musa.cluster.ssh import Remote, Ssh
from verl_musa.errors import HostError, RunError, VerlMusaError
from verl_musa.recipe import Site
from verl_musa.run.directory import RunDirectory
from verl_musa.run.finish import clean_up, write_metrics
from verl_musa.run.record import GOING_ON, RunRecord, load_record
from verl_musa.run.report import summarize, write_report
from verl_musa.run.supervise import stop_job
from verl_musa.run.supervisor_state import ask_to_stop, sign_of
from verl_musa.run.view import runner_alive

STOP_S = 240.0
"""Longest that a stop waits for the run's own supervisor or runner; then it ends what is left itself."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Health:
    """How a run stands.

    Attributes:
        status: as its record has it, or ``abandoned`` where it says that it goes on and nobody works on it.
        note: what a user should know, and do.
    """

    status: str
    note: str = ""


def health(run: RunDirectory, record: RunRecord) -> Health:
    """How a run stands, told from its record and the sign of life of who works on it."""
    if record.status not in GOING_ON:
        return Health(record.status, (record.exit_reason or "").partition("\n")[0])
    name = run.path.name
    after = f"end what is left with `verl-musa stop {name}`, then `verl-musa resume {name}`"
    if record.cluster is None:
        if runner_alive(record):
            return Health(record.status)
        return Health("abandoned", f"its runner (process {record.attempt.runner.pid}) is gone: {after}")
    sign = sign_of(run)
    if sign is not None and sign.alive:
        return Health(record.status, f"supervisor: process {sign.pid} on {sign.host}")
    who = f"its supervisor (process {sign.pid} on {sign.host})" if sign else "its supervisor"
    return Health("abandoned", f"{who} is gone and its job may still run: {after}")


def hosts_of_run(record: RunRecord) -> list[Host]:
    """The hosts of the last attempt, the head first."""
    return [Host(one.name, one.ssh, one.head) for one in record.attempt.hosts]


def host_states(record: RunRecord, site: Site, remote: Remote | None = None) -> dict[str, Answered]:
    """What the agents on the run's hosts say; empty for a run on one host."""
    hosts = hosts_of_run(record)
    if not hosts:
        return {}
    return statuses(record.run_id, hosts, Fleet(remote or Ssh(site), site.python))


def stop(
    run: RunDirectory, site: Site, tell: Tell, *, wait_s: float = STOP_S, remote: Remote | None = None
) -> int:
    """End a run: its job first, then its cluster. Safe to call again. Returns 0, or 3 where a host does not answer.

    Raises:
        RunError: it runs on another machine and cannot be reached from here.
    """
    record = load_record(run.record)
    if record.cluster is None:
        return _stop_here(run, record, tell, wait_s)
    sign = sign_of(run)
    if sign is not None and sign.alive:
        tell(f"asking the supervisor (process {sign.pid} on {sign.host}) to stop the run")
        ask_to_stop(run, f"{getpass.getuser()}@{platform.node()} (process {os.getpid()})")
        if sign.here:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(sign.pid, signal.SIGTERM)
        if _wait(lambda: not _alive(run), wait_s):
            record = load_record(run.record)
            tell(f"the run has ended: {record.status}")
        else:
            tell(f"it has not ended within {wait_s:.0f} s; ending what is left")
    return _stop_abandoned(run, load_record(run.record), site, tell, remote)


def _alive(run: RunDirectory) -> bool:
    sign = sign_of(run)
    return sign is not None and sign.alive


def _wait(done: Callable[[], bool], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _stop_abandoned(
    run: RunDirectory, record: RunRecord, site: Site, tell: Tell, remote: Remote | None
) -> int:
    """End what no supervisor ends any more: the job, then the cluster, and write the end."""
    cluster = record.cluster
    if record.status in GOING_ON and cluster is not None and cluster.url and record.attempt.submission_id:
        ended = stop_job(JobsApi(cluster.url, timeout_s=5.0), record.attempt.submission_id)
        tell("the job has ended" if ended else "Ray does not answer about the job; it ends with the cluster")
    problems: dict[str, str] = {}
    if hosts := hosts_of_run(record):
        problems = take_down(record.run_id, hosts, Fleet(remote or Ssh(site), site.python), tell)
        if not problems:
            with suppress(HostError):
                forget_record(record.run_id, site)
    _write_end(run, record, "stopped; its supervisor was gone")
    return 3 if problems else 0


def _write_end(run: RunDirectory, record: RunRecord, reason: str) -> None:
    """Note the end of a run whose own process could not."""
    if record.status not in GOING_ON:
        return
    record.set_status("interrupted", reason)
    with suppress(VerlMusaError):
        record.summary = summarize(write_metrics(run, record), record)
    record.save(run.record)
    with suppress(VerlMusaError, OSError):
        write_report(run, record)


def _stop_here(run: RunDirectory, record: RunRecord, tell: Tell, wait_s: float) -> int:
    runner = record.attempt.runner
    if record.host != platform.node() and record.status in GOING_ON:
        raise RunError(
            "this run is on another machine",
            where=str(run.path),
            found=f"it runs on {record.host}, this is {platform.node()}",
            expected="the machine that it runs on",
            fix=f"log in to {record.host} and stop it there",
        )
    if same_process_runs(runner.pid, runner.started) and record.status in GOING_ON:
        tell(f"asking the runner (process {runner.pid}) to end the run")
        with suppress(ProcessLookupError, PermissionError):
            os.kill(runner.pid, signal.SIGTERM)
        _wait(lambda: not same_process_runs(runner.pid, runner.started), wait_s)
        record = load_record(run.record)
        tell(f"the run has ended: {record.status}")
    owned = OwnedProcesses(run.path.name)
    if owned.refresh() or record.status in GOING_ON:
        for problem in clean_up(run, record, owned):
            tell(problem)
        _write_end(run, load_record(run.record), "stopped; its runner was gone")
    return 0
