"""Following a submitted job: progress, proofs, and the first sign of trouble."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_musa.cluster.deaths import Death, dead_actors, indented
from verl_musa.cluster.jobs_api import Job, RayApiError
from verl_musa.errors import HostLostError, JobFailedError
from verl_musa.observe import metrics
from verl_musa.observe.display import Display
from verl_musa.observe.metrics import Rows
from verl_musa.observe.proof import (
    device_actors,
    devices_by_pool,
    plugin_failures,
    read_proofs,
    shared_devices,
    wrong_proofs,
)
from verl_musa.run.directory import RunDirectory
from verl_musa.run.finish import write_metrics
from verl_musa.run.gate import JOB_FILE, stopped_by_gate
from verl_musa.run.ground import Ground, Lost
from verl_musa.run.record import RunRecord

KILLED_CODES = (-9, 137)
QUIET_S = 10.0
"""A dashboard may be silent for so long before the user is told."""
_EXCEPTION = re.compile(r"^(?:\([^)]*\)\s*)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*)$")


@dataclass(frozen=True)
class Limits:
    """Bounds of the waits, in seconds.

    Attributes:
        poll: between two looks at the metrics.
        api: between two looks at Ray's state.
        stall: longest time without a new step, from submission on.
        api_lost: longest time for which Ray's dashboard may not answer.
        death: time that a job gets to end by itself once one of its workers has died.
        proof: time that the workers' proofs may lag behind the first step.
    """

    poll: float = 0.5
    api: float = 2.0
    stall: float = 1800.0
    api_lost: float = 120.0
    death: float = 8.0
    proof: float = 20.0


@dataclass
class Follower:
    """Follows one attempt's job to its end.

    Args:
        run: the run directory.
        record: its record; ``total_steps`` is filled in once known.
        ground: the hosts that the job runs on, and their Ray.
        display: where progress is shown.
        submission_id: the job.
        expected: what the workers have to prove.
        differences: largest allowed differences between rollout and trainer (keys of ``metrics.HELD_EACH_STEP``).
        limits: bounds of the waits.
        tend: called at each look at Ray, to keep the guardian alive.
        gate_only: whether the job ends after the correctness gate.
    """

    run: RunDirectory
    record: RunRecord
    ground: Ground
    display: Display
    submission_id: str
    expected: dict[str, Any]
    differences: Mapping[str, float]
    limits: Limits
    tend: Callable[[], None]
    gate_only: bool = False
    pause: Callable[[float], None] = time.sleep
    _rows: Rows = field(default_factory=dict)
    _actors: list[dict[str, Any]] = field(default_factory=list)
    _deaths: dict[str, Death] = field(default_factory=dict)
    _death_at: float | None = None
    _first_step_at: float | None = None
    _proven: bool = False
    _told_silent: bool = False

    def __post_init__(self) -> None:
        now = time.monotonic()
        self._progress_at = self._api_ok_at = now
        self._api_next = 0.0
        self._shown: set[int] = set()

    def follow(self) -> Rows:
        """Return the run's rows once the job has succeeded.

        Raises:
            JobFailedError: it failed, a worker died, a proof is missing or wrong, nothing moves any more, or the
                rollout's probabilities left the trainer's.
        """
        while True:
            job = self._look_at_ray() if time.monotonic() >= self._api_next else None
            self._look_at_metrics()
            if job is not None and job.status == "SUCCEEDED":
                return self._succeeded()
            if job is not None and job.ended:
                raise self._job_failed(job)
            self._check_ray_lives()
            self._check_deaths()
            self._check_proofs(final=False)
            self._check_progress()
            self.pause(self.limits.poll)

    def _look_at_ray(self) -> Job | None:
        self.tend()
        self.ground.look()
        try:
            actors = self.ground.api.actors()
            job = self.ground.api.job(self.submission_id)
        except RayApiError as error:
            self._endure_silence(error)
            job = None
        else:
            if self._told_silent:
                self.display.note("Ray's dashboard answers again")
            self._api_ok_at, self._told_silent = time.monotonic(), False
            self._actors = actors
            self._note_deaths()
        self._find_total()
        self.display.phase(self._waiting_for(job))
        self._api_next = time.monotonic() + self.limits.api
        return job

    def _endure_silence(self, error: RayApiError) -> None:
        """The job goes on while its dashboard is silent, within a bound.

        Raises:
            JobFailedError: for too long.
        """
        silent = time.monotonic() - self._api_ok_at
        if silent > self.limits.api_lost:
            raise self._failure(
                f"Ray's dashboard has not answered for {self.limits.api_lost:.0f} s", found=str(error)
            )
        if silent > QUIET_S and not self._told_silent:
            self._told_silent = True
            self.display.note(
                f"Ray's dashboard has not answered for {silent:.0f} s; the job goes on, and so does the waiting, "
                f"for up to {self.limits.api_lost / 60:.0f} minutes"
            )

    def _note_deaths(self) -> None:
        for actor in dead_actors(self._actors):
            identity = str(actor.get("actor_id"))
            if identity not in self._deaths:
                self._deaths[identity] = self.ground.describe(actor)
                self._death_at = self._death_at or time.monotonic()

    def _look_at_metrics(self) -> None:
        path = self.run.logs / self.record.attempt.metrics_name
        rows = metrics.read_rows(path)
        if rows == self._rows:
            return
        self._rows = rows
        self._progress_at = time.monotonic()
        self._first_step_at = self._first_step_at or time.monotonic()
        write_metrics(self.run, self.record)
        for step in sorted(set(rows) - self._shown):
            self._shown.add(step)
            self.display.step(step, self.record.total_steps, rows[step])
            self._check_probabilities(step, rows[step])

    def _check_probabilities(self, step: int, data: dict[str, Any]) -> None:
        for name, limit in self.differences.items():
            metric = metrics.HELD_EACH_STEP[name]
            difference = metrics.number(data, metric)
            if difference is not None and difference > limit:
                raise self._failure(
                    f"rollout and trainer disagree: their probabilities differ by {difference:.2e} at step {step}",
                    found=f"{metric} {difference:.2e}",
                    expected=f"at most {limit:.1e} (accept.{name} of the recipe)",
                    fix="look at the weight sync first: a rollout engine with old weights shows exactly this",
                )

    def _find_total(self) -> None:
        if self.record.total_steps is None:
            self.record.total_steps = self.ground.total_steps(self.submission_id)

    def _waiting_for(self, job: Job | None) -> str:
        classes = Counter(
            # verl makes its worker classes inside functions: "create_colocated_worker_cls.<locals>.WorkerDict"
            str(actor.get("class_name")).rpartition(".")[2]
            for actor in self._actors
            if actor.get("state") == "ALIVE"
        )
        classes.pop("JobSupervisor", None)
        workers = ", ".join(f"{count} {name}" for name, count in sorted(classes.items()))
        if job is not None and job.status == "PENDING":
            return "the job waits for its driver to start"
        if self._finished_steps():
            return "the job's end, after its last step" if self._rows else "the job's end, after its gate"
        if not workers:
            return "the job's driver starts"
        if not self._rows:
            return f"the first step; workers so far: {workers}"
        return f"step {max(self._rows) + 1}; workers: {workers}"

    def _finished_steps(self) -> bool:
        """Whether the job has done what it was started for, so that its processes may end."""
        total = self.record.total_steps
        if self.gate_only:
            return (self.run.logs / JOB_FILE).exists()
        return total is not None and total in self._rows

    def _check_ray_lives(self) -> None:
        if (lost := self.ground.lost()) is not None:
            raise self._host_lost(lost)
        if (ended := self.ground.ended()) is not None:
            message, found = ended
            raise self._failure(message, found=found)

    def _host_lost(self, lost: Lost) -> HostLostError:
        also = "".join(
            f"\n  with it {death.who} (pid {death.pid}, node {death.node}) died"
            for death in list(self._deaths.values())[:3]
        )
        return HostLostError(
            f"{lost}{also}",
            lost=tuple(lost.hosts),
            where=next(iter(lost.hosts)),
            fix=f"mend the host, then go on with `verl-musa resume {self.run.path.name}`; --retries does so by itself",
        )

    def _check_deaths(self) -> None:
        if self._death_at is not None and time.monotonic() - self._death_at > self.limits.death:
            raise self._worker_died()
        engine = self.ground.engine_death(older_than_s=self.limits.death)
        if engine is not None and not self._finished_steps():
            self._deaths = {"engine": engine, **self._deaths}
            raise self._worker_died()

    def _check_progress(self) -> None:
        waited = time.monotonic() - self._progress_at
        if waited > self.limits.stall:
            job = None
            raise self._failure(
                f"nothing has moved for {waited / 60:.0f} minutes",
                found=f"waiting for {self._waiting_for(job)}",
                expected="a new step within the bound of --stall-minutes",
                fix="look at the workers' logs below; a slow recipe needs a larger --stall-minutes",
            )

    def _check_proofs(self, *, final: bool) -> None:
        if self._proven and not final:
            return
        if not final and self._first_step_at is None:
            return
        proofs = read_proofs(self.run.proofs)
        if wrong := wrong_proofs(proofs, self.expected):
            raise self._failure(
                "a worker did not run on the device that the recipe asks for",
                found="; ".join(wrong),
                expected=str(self.expected),
                fix="check `verl-musa env`, and that the image's torch_musa is the one that the recipe wants",
            )
        if self.record.device.pools and (both := shared_devices(proofs)):
            raise self._failure(
                "trainer and rollout share devices",
                found=f"{', '.join(both)}, of {devices_by_pool(proofs)}",
                expected="none: the recipe's placement is split",
                fix="check pools in recipe.yaml, and that all devices are visible to every worker (docs/placement.md)",
            )
        proved = {self.ground.who_proved(proof) for proof in proofs}
        owners = {self.ground.who(actor): int(actor["pid"]) for actor in device_actors(self._actors)}
        missing = sorted(pid for who, pid in owners.items() if who not in proved)
        if len(proved) >= self.record.device.count and not missing:
            self._proven = True
            self.record.device.proven = True
            self.record.device.workers = proofs
            return
        if not self._proven and (final or time.monotonic() - (self._first_step_at or 0) > self.limits.proof):
            raise self._failure(
                "not every worker that owns a device proved which one it is",
                found=f"{len(proved)} proofs" + (f", none of the workers {missing}" if missing else ""),
                expected=f"one of each such worker, {self.record.device.count} at least, in {self.run.proofs}",
                fix="the verl plugin of this package did not load in the worker: see its log for the reason",
            )

    def _succeeded(self) -> Rows:
        self._look_at_metrics()
        self._check_proofs(final=True)
        return write_metrics(self.run, self.record)

    def _job_failed(self, job: Job) -> JobFailedError:
        """Why the job failed: a dead worker if there is one, else what its driver said last."""
        deadline = time.monotonic() + self.limits.api * 2
        while not self._deaths and time.monotonic() < deadline:
            try:
                self._actors = self.ground.api.actors()
            except RayApiError:
                break
            self._note_deaths()
            self.pause(self.limits.poll)
        engine = self.ground.engine_death(older_than_s=0.0)
        if engine is not None and not self._deaths:
            self._deaths["engine"] = engine
        if failures := plugin_failures(self.run.proofs):
            return self._failure(
                f"the verl plugin did not load in a worker: {failures[0]}", found="; ".join(failures)
            )
        if (stopped := stopped_by_gate(self.run)) is not None:
            return stopped
        if self._deaths:
            return self._worker_died()
        if (
            lost := self.ground.blame(f"{job.message}\n{self.ground.driver_said(self.submission_id)}")
        ) is not None:
            return self._host_lost(lost)
        return self._driver_failed(job)

    def _driver_failed(self, job: Job) -> JobFailedError:
        said = self.ground.driver_said(self.submission_id)
        cause = next(
            (found[1] for line in reversed(said.splitlines()) if (found := _EXCEPTION.match(line))), ""
        )
        if job.exit_code in KILLED_CODES:
            cause = "its driver was killed by SIGKILL"
        elif not cause and not job.message.startswith("Job entrypoint command failed"):
            cause = job.message.strip().partition("\n")[0][:400]
        code = f" with exit code {job.exit_code}" if job.exit_code is not None else ""
        return self._failure(
            f"the job ended{code}" + (f": {cause}" if cause else ""),
            found=f"its driver's last lines:\n{indented(said)}" if said else job.message[-2000:],
        )

    def _worker_died(self) -> JobFailedError:
        if (stopped := stopped_by_gate(self.run)) is not None:
            return stopped  # the workers of a job that ends itself may go before its state says so
        said = "\n".join(
            [*(death.cause for death in self._deaths.values()), self.ground.driver_said(self.submission_id)]
        )
        if (lost := self.ground.blame(said)) is not None:
            return self._host_lost(lost)
        first, *others = self._deaths.values()
        also = "".join(f"\n  and {other.who} (pid {other.pid})" for other in others[:3])
        return self._failure(f"{first}{also}")

    def _failure(
        self, message: str, *, found: str | None = None, expected: str | None = None, fix: str | None = None
    ) -> JobFailedError:
        return JobFailedError(
            message,
            found=found,
            expected=expected,
            fix=fix or f"read {self.run.logs}, mend the cause, then go on with --resume {self.run.path.name}",
        )
