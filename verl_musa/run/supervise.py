"""A run on several hosts from its cluster to its end: ``python -m verl_musa.run.supervise RUN``, options as JSON on standard input.

It is a session of its own on the launching machine, so that a closed terminal does not end the run. What it tells goes to
``logs/events.jsonl``; whoever wants to see it reads that file.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from verl_musa.cluster.bring_up import Cluster, bring_up, forget_record, keep_record, owner, take_down
from verl_musa.cluster.fleet import Fleet, Member, members
from verl_musa.cluster.jobs_api import JobsApi, RayApiError
from verl_musa.cluster.preflight.afterwards import Wish, look_afterwards
from verl_musa.cluster.ssh import Remote, Ssh
from verl_musa.diagnose import triage_card
from verl_musa.errors import HostLostError, VerlMusaError
from verl_musa.recipe import load_recipe, load_site
from verl_musa.run import RunOptions
from verl_musa.run.directory import RunDirectory
from verl_musa.run.events import EventDisplay, events_file
from verl_musa.run.follow import Limits
from verl_musa.run.launch import BACKENDS, job_runtime_env, own_variables
from verl_musa.run.layout import Layout, lay_out
from verl_musa.run.phases import attempt, conclude, follow_and_hold, submit, tell_results
from verl_musa.run.prepare import Prepared, prepare_retry, restore, write_directory
from verl_musa.run.record import HostFacts, ProcessFacts, Status, load_record
from verl_musa.run.resume import manifests
from verl_musa.run.retry import Search
from verl_musa.run.several_ground import SeveralGround
from verl_musa.run.signals import InterruptedRunError, Signals
from verl_musa.run.supervisor_state import Beat, asked_to_stop, state_file, stop_file

API_LOST_S = 600.0
"""Longest time for which the head's dashboard may be silent: the job does not need it."""
RETURN_S = 900.0
"""Longest wait for a lost host to come back."""
JOB_STOP_S = 20.0
HASHES_S = 120.0
PROBE_S = 480.0
"""Bound of the probe in Ray. It ends within half a minute on hosts that have nothing else to do; 240 s were seen not to do on a
machine with a load of 15 on two processors."""
INTERRUPTED = 130
PROGRAM = ("-m", "verl_musa.run.supervise")
"""What the supervisor's Python runs."""


class Supervisor:
    """Works on one run.

    Args:
        run: the run, prepared and written.
        options: what the user asked for.
        display: where it tells what happens.
        remote: how hosts are reached; None: over ssh.
        limits: bounds of the waits while the job runs.
        return_s: longest wait for a lost host to come back.
    """

    def __init__(
        self,
        run: RunDirectory,
        options: RunOptions,
        display: EventDisplay,
        *,
        remote: Remote | None = None,
        limits: Limits | None = None,
        return_s: float = RETURN_S,
    ) -> None:
        self._run = run
        self._options = options
        self._display = display
        self._site = load_site(options.site)
        self._remote = remote or Ssh(self._site)
        self._fleet = Fleet(self._remote, self._site.python)
        self._limits = limits or Limits(stall=options.stall_minutes * 60, api_lost=API_LOST_S, proof=60.0)
        self._return_s = return_s
        self._signals = Signals()

    def work(self) -> int:
        """Run to the end, with as many retries as were asked for. Returns 0.

        Raises:
            VerlMusaError: the run failed.
            InterruptedRunError: it was stopped.
        """
        with self._signals:
            record = load_record(self._run.record)
            recipe = load_recipe(record.recipe.folder, variants=record.recipe.variants)
            layout = lay_out(self._options, recipe, self._site, record.cluster)
            prepared = restore(self._options, self._run, layout)
            for left in range(self._options.retries, -1, -1):
                try:
                    self._attempt(prepared, layout)
                except HostLostError as error:
                    if not left:
                        raise
                    self._display.note(
                        f"{error.message.partition(chr(10))[0]}; trying again, {left - 1} retries left after this"
                    )
                    search = Search(self._run, self._options, recipe, self._remote, self._display, self._check_stop, self._return_s)  # fmt: skip
                    layout = search.hosts(layout, error)
                    prepared = self._prepare_retry(layout)
                else:
                    break
        return 0

    def _prepare_retry(self, layout: Layout) -> Prepared:
        prepared = prepare_retry(self._options, self._run, self._display, layout)
        write_directory(prepared, None, self._site.python)
        return prepared

    def _check_stop(self) -> None:
        """Raise InterruptedRunError where somebody asked to stop the run."""
        if (who := asked_to_stop(self._run)) is not None:
            raise InterruptedRunError(f"stopped by {who}")

    def _attempt(self, prepared: Prepared, layout: Layout) -> None:
        """Run one attempt; whatever happens, its cluster is taken down and the record says how it ended."""

        def work() -> None:
            self._check_stop()
            try:
                self._bring_up_and_follow(prepared, layout)
            except HostLostError as error:
                said = error.message.partition("\n")[0]
                prepared.record.attempt.lost = dict.fromkeys(error.lost, said)
                raise

        self._signals.listen()
        try:
            attempt(self._signals, work, lambda status, reason: self._end(prepared, layout, status, reason))
        finally:
            self._signals.listen()

    def _bring_up_and_follow(self, prepared: Prepared, layout: Layout) -> None:
        run, record, note = prepared.run, prepared.record, self._display.note
        record.attempt.runner = ProcessFacts(pid=os.getpid(), started=psutil.Process().create_time())
        record.set_status("preparing")
        record.save(run.record)
        if record.attempt.number > 1:
            take_down(
                run.path.name, layout.everybody, self._fleet, self._told("left by an earlier attempt: ")
            )
        cluster = self._cluster(prepared, members(self._fleet, layout.hosts, self._site, time.time))
        self._note_hosts(prepared, cluster)
        keep_record(cluster, self._site)
        bring_up(
            cluster, self._fleet, self._told(), health_s=0
        )  # the probe looks again after the health interval
        note(f"Ray is up on {len(cluster.members)} hosts with {cluster.num_gpus} devices each: {cluster.url}")
        own = own_variables(prepared.recipe, run, record.attempt, prepared.switches)
        probe(cluster, prepared, own, self._display, self._site.python)
        submission_id = submit(JobsApi(cluster.url), prepared, own, self._site.python)
        hashes = manifests(run.checkpoints, note)

        def tend() -> None:
            self._check_stop()
            hashes.tend()

        ground = SeveralGround(cluster, self._fleet, note)
        try:
            follow_and_hold(prepared, ground, submission_id, self._display, limits=self._limits, tend=tend)
        finally:
            hashes.finish(timeout_s=HASHES_S)

    def _told(self, prefix: str = "") -> Callable[[str], None]:
        """Tells of progress with the hosts, and hears a request to stop in between."""

        def told(text: str) -> None:
            if not prefix or "nothing runs" not in text:
                self._display.note(prefix + text)
            if not prefix:
                self._check_stop()

        return told

    def _cluster(self, prepared: Prepared, found: list[Member]) -> Cluster:
        run, record = prepared.run, prepared.record
        sizes = prepared.recipe.cluster
        return Cluster(
            cluster=run.path.name,
            owner=owner(),
            members=found,
            num_gpus=sizes.devices_per_node,
            num_cpus=sizes.cpus_per_node,
            ports=self._site.ray,
            variables=own_variables(prepared.recipe, run, record.attempt, prepared.switches),
            logs=run.logs / "ray" / f"attempt-{record.attempt.number}",
        )

    def _note_hosts(self, prepared: Prepared, cluster: Cluster) -> None:
        """Put the hosts into the record."""
        record, head = prepared.record, cluster.head
        record.attempt.hosts = [
            HostFacts(
                name=member.name,
                ssh=member.host.address,
                address=member.address,
                interface=member.interface,
                hostname=member.hostname,
                head=member is head,
            )
            for member in cluster.members
        ]
        if record.cluster is not None:
            record.cluster.url = cluster.url
        record.save(prepared.run.record)
        names = [f"{member.name} ({member.address})" for member in cluster.members]
        self._display.event(
            "attempt",
            number=record.attempt.number,
            hosts=names,
            resumed_from=record.attempt.resumed_from_step,
        )

    def _end(self, prepared: Prepared, layout: Layout, status: Status, reason: str | None) -> None:
        """End the job, then the cluster; gather what there is; write the end."""
        run, record = prepared.run, prepared.record
        self._display.phase("ending the job and the cluster")
        problems: list[str] = []
        if status != "succeeded" and record.attempt.submission_id and record.cluster and record.cluster.url:
            stop_job(JobsApi(record.cluster.url, timeout_s=5.0), record.attempt.submission_id)
        down = take_down(run.path.name, layout.hosts, self._fleet, lambda _: None)
        problems += [
            f"host {name} could not be taken down ({why}); `verl-musa cluster down {run.path.name}` does it once it answers"
            for name, why in down.items()
        ]
        if not down:
            forget_record(run.path.name, self._site)
        card = conclude(prepared, status, reason, self._display, problems, show=False)
        if card is not None:
            text = io.StringIO()
            triage_card.render(card, Console(file=text, width=120, highlight=False))
            self._display.event("card", text=text.getvalue())


def stop_job(api: JobsApi, submission_id: str, *, timeout_s: float = JOB_STOP_S) -> bool:
    """Ask Ray to end the job, and wait a little. Returns whether it ended; a Ray that does not answer is no error."""
    with suppress(RayApiError):
        if api.job(submission_id).ended:
            return True
        api.stop(submission_id)
        deadline = time.monotonic() + timeout_s
        while not api.job(submission_id).ended:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True
    return False


def probe(
    cluster: Cluster, prepared: Prepared, own: dict[str, str], display: EventDisplay, python: str | None
) -> None:
    """Look at a Ray that is up before the job is handed in: its nodes twice, and a small job that moves data between all hosts.

    Raises:
        HostError: a check failed.
    """
    recipe = prepared.recipe
    wish = Wish(
        hosts={member.name: member.address for member in cluster.members},
        devices=cluster.num_gpus,
        runtime_env=job_runtime_env(prepared.resolved, own),
        backend="gloo" if recipe.device.simulated else BACKENDS[recipe.device.type],
        device=recipe.device.type if recipe.trainer.module.startswith("verl.") else None,
        simulated=recipe.device.simulated,
        python=python or sys.executable,
        seconds=PROBE_S,
        metadata={"verl_musa_run": prepared.run.path.name},
    )
    display.phase("a probe of the hosts in Ray: nodes, data between all of them, platform")
    tell_results(
        "probe of the hosts in Ray", look_afterwards(JobsApi(cluster.url), wish, display.phase), display
    )


def options_json(options: RunOptions) -> str:
    """Options as they travel to a supervisor."""
    return json.dumps(
        {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()}
    )


def options_from(text: str) -> RunOptions:
    """The reverse of :func:`options_json`."""
    value: dict[str, Any] = json.loads(text)
    for name in ("site", "runs_dir"):
        value[name] = None if value[name] is None else Path(value[name])
    for name, one in value.items():
        if isinstance(one, list):
            value[name] = tuple(one)
    return RunOptions(**value)


def launch(run: RunDirectory, options: RunOptions) -> subprocess.Popen[bytes]:
    """Start the supervisor of a run in a session of its own, and hand it the options."""
    stop_file(run).unlink(missing_ok=True)
    state_file(run).unlink(
        missing_ok=True
    )  # an earlier supervisor's sign of life says nothing about this one
    with (run.logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *PROGRAM, str(run.path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=run.path,
            start_new_session=True,
        )
    if process.stdin is None:
        raise AssertionError("a pipe was asked for")
    process.stdin.write(options_json(options).encode())
    process.stdin.close()
    return process


def supervise(run: RunDirectory, options: RunOptions) -> int:
    """Work on the run; whatever happens, the last event says how it ended."""
    display = EventDisplay(events_file(run))
    code, error = 1, "the supervisor ended without a word"
    with Beat(run):
        try:
            code, error = Supervisor(run, options, display).work(), ""
        except InterruptedRunError as interrupt:
            code, error = INTERRUPTED, str(interrupt)
        except VerlMusaError as failed:
            code, error = failed.exit_code, str(failed)
        except BaseException as broken:
            code, error = 1, f"{type(broken).__name__}: {broken}"
            traceback.print_exc()
            raise
        finally:
            _settle(run, error)
            display.event("end", code=code, error=error)
    return code


def _settle(run: RunDirectory, error: str) -> None:
    """A run that ended before its first attempt began has ended all the same."""
    with suppress(VerlMusaError, OSError):
        record = load_record(run.record)
        if record.status in {"created", "preparing", "running"}:
            record.set_status("failed", error)
            record.save(run.record)


def main(argv: list[str] | None = None) -> int:
    """Supervise the run directory named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    arguments = parser.parse_args(argv)
    return supervise(RunDirectory(arguments.run_dir.resolve()), options_from(sys.stdin.read()))


if __name__ == "__main__":
    sys.exit(main())
