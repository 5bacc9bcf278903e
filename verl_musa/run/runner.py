"""One attempt of a run, from the checks to the report."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console

from verl_musa.checks import Result
from verl_musa.cluster.local_ray import LocalRay, RayPlan, make_temp_dir, ray_environment, start_ray
from verl_musa.cluster.processes import OwnedProcesses
from verl_musa.diagnose import failures, read_gate
from verl_musa.errors import JobFailedError
from verl_musa.observe.display import Display, open_display
from verl_musa.recipe import Recipe
from verl_musa.run import RunOptions
from verl_musa.run.directory import RunDirectory
from verl_musa.run.finish import clean_up
from verl_musa.run.follow import Limits
from verl_musa.run.ground import LocalGround
from verl_musa.run.guardian import Guardian
from verl_musa.run.launch import job_command, own_variables
from verl_musa.run.phases import attempt, conclude, follow_and_hold, submit
from verl_musa.run.prepare import Prepared, plan, prepare, write_directory
from verl_musa.run.record import Status
from verl_musa.run.resume import manifests
from verl_musa.run.signals import InterruptedRunError, Signals

INTERRUPTED = 130
RAY_START_S = 420.0
HASHES_S = 60.0
"""Bound of hashing the last checkpoint at the end; without its hashes a resume only reads it."""


class Runner:
    """Runs what the options ask for.

    Args:
        options: what the user asked for.
        display: where progress is shown; by default what fits standard output.
        limits: bounds of the waits while the job runs.
    """

    def __init__(
        self, options: RunOptions, *, display: Display | None = None, limits: Limits | None = None
    ) -> None:
        self._options = options
        self._display = display or open_display()
        self._limits = limits or Limits(stall=options.stall_minutes * 60)
        self._signals = Signals()
        self.run_directory: RunDirectory | None = None

    def run(self) -> int:
        """Run to the end; see :func:`verl_musa.run.run_recipe`."""
        try:
            with self._signals:
                return self._run()
        except InterruptedRunError as interrupt:
            self._display.close()
            sys.stderr.write(f"verl-musa: {interrupt}\n")
            return INTERRUPTED
        finally:
            self._display.close()

    def _run(self) -> int:
        if address := os.environ.get("RAY_ADDRESS"):
            self._display.note(f"RAY_ADDRESS={address} is ignored: this run starts a Ray of its own")
        from verl_musa.run.several import several

        if (found := several(self._options)) is not None:
            return self._several(*found)
        prepared = prepare(self._options, self._display)
        self.run_directory = prepared.run
        if self._options.dry_run:
            self._describe(prepared)
            return 0
        temp_dir = make_temp_dir()
        try:
            ray_plan = plan(self._options, prepared, temp_dir)
            write_directory(prepared, ray_plan)
        except BaseException:
            shutil.rmtree(temp_dir, ignore_errors=True)
            raise
        self._attempt(prepared, ray_plan)
        return 0

    def _several(self, options: RunOptions, recipe: Recipe) -> int:
        """A run on several hosts: start its supervisor and show what it does; an interrupt ends only the showing.

        Raises:
            VerlMusaError: a check failed, something is missing, or a host does not fit.
        """
        from verl_musa.run.several import start
        from verl_musa.run.view import Viewer

        run = start(options, recipe, self._display)
        if run is None:
            return 0
        self.run_directory = run
        return Viewer(run, self._display, quiet=options.gate == "only").show()

    def _describe(self, prepared: Prepared) -> None:
        """A dry run: write the directory of a new run and say what would be done."""
        ray_plan = plan(self._options, prepared, Path("TEMPORARY"))
        if prepared.record.attempt.number == 1:
            write_directory(prepared, ray_plan)
            prepared.record.attempt.ray = None
            prepared.record.save(prepared.run.record)
        self._display.close()
        note = self._display.note
        note("dry run: everything is checked, nothing was started. This run would")
        note(f"  start Ray: {shlex.join(ray_plan.command())}")
        note(f"  submit:    {shlex.join(job_command(prepared.recipe, prepared.run))}")
        if prepared.checkpoint is not None:
            note(f"  resume:    {prepared.checkpoint.path}")
        note(f"  write to:  {prepared.run.path}")

    def _attempt(self, prepared: Prepared, ray_plan: RayPlan) -> None:
        """Run one attempt; whatever happens, nothing of it is left running and the record says how it ended."""
        owned = OwnedProcesses(prepared.run.path.name)
        guardian = Guardian(prepared.run)

        def work() -> None:
            guardian.ensure()
            self._bring_up_and_follow(prepared, ray_plan, owned, guardian)

        attempt(
            self._signals,
            work,
            lambda status, reason: self._finish(prepared, owned, guardian, status, reason),
        )

    def _bring_up_and_follow(
        self, prepared: Prepared, ray_plan: RayPlan, owned: OwnedProcesses, guardian: Guardian
    ) -> None:
        run, record = prepared.run, prepared.record
        self._display.note(f"run {run.path.name} in {run.path}")
        record.set_status("preparing")
        record.save(run.record)
        own = own_variables(prepared.recipe, run, record.attempt, prepared.switches)
        ray = self._start_ray(prepared, ray_plan, own)
        submission_id = submit(ray.api, prepared, own)
        hashes = manifests(run.checkpoints, self._display.note)

        def tend() -> None:
            guardian.ensure()
            hashes.tend()

        try:
            ground = LocalGround(ray, owned)
            follow_and_hold(prepared, ground, submission_id, self._display, limits=self._limits, tend=tend)
        finally:
            hashes.finish(timeout_s=HASHES_S)

    def _start_ray(self, prepared: Prepared, ray_plan: RayPlan, own: dict[str, str]) -> LocalRay:
        self._display.phase("Ray starts")
        ray = start_ray(
            ray_plan,
            environment=ray_environment(prepared.run.path.name, own),
            log=prepared.run.logs / "ray-start.log",
            cwd=prepared.run.path,
        )
        ray.wait_ready(timeout_s=RAY_START_S)
        self._display.note(f"Ray is up: {ray_plan.num_gpus} devices, {ray_plan.url}")
        return ray

    def _finish(
        self,
        prepared: Prepared,
        owned: OwnedProcesses,
        guardian: Guardian,
        status: Status,
        reason: str | None,
    ) -> None:
        self._display.note("ending the processes of this run")
        problems = clean_up(prepared.run, prepared.record, owned)
        conclude(prepared, status, reason, self._display, problems, settled=guardian.release)


def gate_only(options: RunOptions) -> tuple[list[Result], Path]:
    """Run a job that ends after its gate; see :func:`verl_musa.run.gate_recipe`."""
    runner = Runner(options, display=open_display(Console(stderr=True, soft_wrap=True, highlight=False)))
    try:
        code = runner.run()
    except JobFailedError:
        run = runner.run_directory
        if run is None or not failures(read_gate(run.gate)):
            raise
        code = 0
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if runner.run_directory is None:
        raise AssertionError("a runner that ended well has a run directory")
    results = read_gate(runner.run_directory.gate)
    if code and not failures(results):  # on several hosts, whose supervisor has told the reason
        raise JobFailedError(
            "the job failed before the gate had its say",
            where=str(runner.run_directory.path),
            fix="see report.md there",
        )
    return results, runner.run_directory.path
