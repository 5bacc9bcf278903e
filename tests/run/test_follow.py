from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from verl_musa.cluster.deaths import Death
from verl_musa.cluster.jobs_api import Job, RayApiError
from verl_musa.errors import HostLostError, JobFailedError
from verl_musa.run.directory import RunDirectory
from verl_musa.run.follow import Follower, Limits
from verl_musa.run.ground import LocalGround, Lost
from verl_musa.run.record import RunRecord

EXPECTED = {"device": "musa", "backend": "mccl", "simulated": True}
ALIVE = [
    {
        "actor_id": str(pid),
        "class_name": "WorkerDict",
        "state": "ALIVE",
        "pid": pid,
        "required_resources": {"GPU": 1},
    }
    for pid in (11, 12)
]
KILLED = {
    "reason": "WORKER_DIED",
    "error_message": "The actor is dead. Worker exit type: SYSTEM_ERROR Worker exit detail: gone.",
    "node_ip_address": "10.0.0.1",
}
DEAD = {**ALIVE[0], "state": "DEAD", "name": "w0", "death_cause": {"actor_died_error_context": KILLED}}


@dataclass
class FakeApi:
    """Answers from a list of states, one a look; the last one stays."""

    looks: list[tuple[str, list[dict[str, Any]]]]
    seen: int = 0
    code: int = 1

    def actors(self) -> list[dict[str, Any]]:
        status, actors = self.looks[min(self.seen, len(self.looks) - 1)]
        if status == "SILENT":
            raise RayApiError("connection refused")
        return actors

    def job(self, _: str) -> Job:
        status = self.looks[min(self.seen, len(self.looks) - 1)][0]
        self.seen += 1
        return Job(status, "the message", self.code if status == "FAILED" else None)


@dataclass
class FakeRay:
    api: FakeApi
    session_dir: Path
    code: int | None = None

    def exit_code(self) -> int | None:
        return self.code


class NoProcesses:
    def refresh(self) -> list[Any]:
        return []


@dataclass
class Shown:
    lines: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.lines.append(text)

    phase = note

    def step(self, step: int, total: int | None, _: dict[str, Any]) -> None:
        self.lines.append(f"step {step}/{total}")

    def close(self) -> None:
        self.lines.append("closed")


Make = Callable[..., Follower]


def session_of(follower: Follower) -> Path:
    assert isinstance(follower.ground, LocalGround)
    assert follower.ground.ray.session_dir is not None
    return follower.ground.ray.session_dir


@pytest.fixture
def make(run: RunDirectory, record: RunRecord, tmp_path: Path) -> Make:
    def build(looks: list[tuple[str, list[dict[str, Any]]]], **changes: Any) -> Follower:
        session = tmp_path / "session"
        (session / "logs").mkdir(parents=True, exist_ok=True)
        limits = {"poll": 0.0, "api": 0.0, "stall": 5.0, "api_lost": 0.05, "death": 0.0, "proof": 0.0}
        arguments: dict[str, Any] = {
            "run": run,
            "record": record,
            "ground": LocalGround(
                FakeRay(FakeApi(looks), session, changes.pop("code", None)),  # type: ignore[arg-type]
                changes.pop("owned", NoProcesses()),
            ),
            "display": Shown(),
            "submission_id": "job",
            "expected": EXPECTED,
            "differences": {"rollout_probs_diff_max": 1e-5, "log_ppl_abs_diff_max": 1e-6},
            "limits": Limits(**{**limits, **changes.pop("limits", {})}),
            "tend": lambda: None,
        }
        return Follower(**{**arguments, **changes})

    return build


def log(run: RunDirectory, *steps: int, **data: float) -> None:
    with (run.logs / "metrics-attempt-1.jsonl").open("a") as stream:
        for step in steps:
            stream.write(json.dumps({"step": step, "data": {"critic/score/mean": 0.5, **data}}) + "\n")


def prove(run: RunDirectory, *pids: int, **changes: Any) -> None:
    for pid in pids:
        (run.proofs / f"actor-{pid}.json").write_text(json.dumps({"pid": pid, **EXPECTED, **changes}))


def test_a_job_is_followed_to_its_success(make: Make, run: RunDirectory, record: RunRecord) -> None:
    log(run, 1, 2, 3)
    prove(run, 11, 12)
    follower = make([("PENDING", []), ("RUNNING", ALIVE), ("SUCCEEDED", [])])
    assert list(follower.follow()) == [1, 2, 3]
    assert isinstance(follower.display, Shown)
    assert [line for line in follower.display.lines if line.startswith("step ")] == [
        "step 1/3",
        "step 2/3",
        "step 3/3",
    ]
    assert record.device.proven
    assert [worker["pid"] for worker in record.device.workers] == [11, 12]
    assert len(run.metrics.read_text().splitlines()) == 3


def test_the_number_of_steps_is_read_from_the_driver(
    make: Make, run: RunDirectory, record: RunRecord
) -> None:
    record.total_steps = None
    log(run, 1)
    prove(run, 11, 12)
    follower = make([("RUNNING", ALIVE), ("SUCCEEDED", [])])
    (session_of(follower) / "logs" / "job-driver-job.log").write_text("x INFO Total training steps: 20\n")
    follower.follow()
    assert record.total_steps == 20


def test_a_failed_job_is_explained_by_its_driver(make: Make) -> None:
    follower = make([("FAILED", [])])
    lines = "Traceback (most recent call last):\n  File x\nhydra.errors.ConfigError: no key 'abc'\nbye\n"
    (session_of(follower) / "logs" / "job-driver-job.log").write_text(lines)
    with pytest.raises(
        JobFailedError, match=r"exit code 1: hydra.errors.ConfigError: no key 'abc'"
    ) as caught:
        follower.follow()
    assert "    | bye" in str(caught.value)


def test_a_failed_job_without_a_log_gives_rays_message(make: Make) -> None:
    with pytest.raises(JobFailedError, match="the message"):
        make([("FAILED", [])]).follow()


@pytest.mark.parametrize("status", ["RUNNING", "FAILED"])
def test_a_dead_worker_is_the_cause_whether_the_job_ends_or_hangs(make: Make, status: str) -> None:
    follower = make([("RUNNING", ALIVE), (status, [DEAD, ALIVE[1]])])
    (session_of(follower) / "logs" / "worker-a-01-11.err").write_text("last words\n")
    with pytest.raises(
        JobFailedError, match=r"worker WorkerDict 'w0' \(pid 11, node 10.0.0.1\) died"
    ) as caught:
        follower.follow()
    assert "| last words" in str(caught.value)


def test_an_end_of_ray_itself_is_told(make: Make) -> None:
    follower = make([("RUNNING", [])], code=1)
    (session_of(follower) / "logs" / "ray_process_exit.log").write_text("raylet [exit code=-9]\n")
    with pytest.raises(JobFailedError, match=r"(?s)Ray itself ended with code 1.*raylet \[exit code=-9\]"):
        follower.follow()


def test_a_silent_dashboard_is_told_after_its_bound(make: Make) -> None:
    with pytest.raises(JobFailedError, match="dashboard has not answered"):
        make([("SILENT", [])]).follow()


class Hosts(LocalGround):
    """Several hosts, of which ``gone`` is lost at the look that ``at`` counts, or only once somebody is to blame."""

    gone = Lost({"node2": "Ray calls it DEAD"})
    at: int | None = None
    looks = 0

    def look(self) -> None:
        self.looks += 1

    def lost(self) -> Lost | None:
        return self.gone if self.at is not None and self.looks >= self.at else None

    def blame(self, said: str) -> Lost | None:
        assert said
        return self.gone


def test_a_lost_host_ends_it_by_name(make: Make) -> None:
    follower = make([("RUNNING", ALIVE)])
    ground = _as_hosts(follower)
    ground.at = 2
    with pytest.raises(HostLostError, match="host node2 is lost: Ray calls it DEAD") as caught:
        follower.follow()
    assert caught.value.lost == ("node2",)
    assert ground.looks == 2


def _as_hosts(follower: Follower) -> Hosts:
    follower.ground.__class__ = Hosts
    assert isinstance(follower.ground, Hosts)
    return follower.ground


@pytest.mark.parametrize("status", ["RUNNING", "FAILED"])
def test_a_worker_that_died_with_its_host_is_a_lost_host(make: Make, status: str) -> None:
    follower = make([("RUNNING", ALIVE), (status, [DEAD, ALIVE[1]])])
    _as_hosts(follower)
    with pytest.raises(HostLostError, match=r"(?s)host node2 is lost.*with it worker WorkerDict 'w0'"):
        follower.follow()


def test_a_job_that_failed_because_its_host_went_is_a_lost_host(make: Make) -> None:
    follower = make([("FAILED", [])])
    _as_hosts(follower)
    with pytest.raises(HostLostError, match="node2"):
        follower.follow()


def test_a_dashboard_that_comes_back_ends_nothing_and_is_told(
    make: Make, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_musa.run.follow.QUIET_S", 0.0)
    log(run, 1)
    prove(run, 11, 12)
    follower = make(
        [("RUNNING", ALIVE), ("SILENT", []), ("RUNNING", ALIVE), ("SUCCEEDED", [])], limits={"api_lost": 60.0}
    )
    api = follower.ground.api
    assert isinstance(api, FakeApi)

    waited: list[float] = []

    def pause(seconds: float) -> None:
        if api.looks[api.seen][0] == "SILENT":
            waited.append(seconds)
            api.seen += len(waited) > 1  # once it was asked in vain

    follower.pause = pause
    assert list(follower.follow()) == [1]
    assert isinstance(follower.display, Shown)
    told = [line for line in follower.display.lines if "dashboard" in line]
    assert "the job goes on" in told[0]
    assert told[1] == "Ray's dashboard answers again"


def test_a_stall_says_what_was_waited_for(make: Make) -> None:
    with pytest.raises(JobFailedError, match="nothing has moved") as caught:
        make([("RUNNING", ALIVE)], limits={"stall": 0.05}).follow()
    assert "the first step; workers so far: 2 WorkerDict" in str(caught.value)


@pytest.mark.parametrize(
    ("pids", "changes", "message"),
    [
        ((), {}, "not every worker that owns a device proved"),
        ((11, 13), {}, r"none of the workers \[12\]"),
        ((11, 12), {"backend": "gloo"}, r"backend 'gloo' \(expected 'mccl'\)"),
    ],
)
def test_missing_and_wrong_proofs_fail_the_run(
    make: Make, run: RunDirectory, pids: tuple[int, ...], changes: dict[str, Any], message: str
) -> None:
    log(run, 1)
    prove(run, *pids, **changes)
    with pytest.raises(JobFailedError, match=message):
        make([("RUNNING", ALIVE)]).follow()


def split_proof(run: RunDirectory, pid: int, role: str, device: str) -> None:
    fields = {"pid": pid, "role": role, "node": "n1", "accelerators": [device], **EXPECTED}
    (run.proofs / f"{role}-{pid}.json").write_text(json.dumps(fields))


def test_pools_that_share_a_device_fail_a_split_run(make: Make, run: RunDirectory, record: RunRecord) -> None:
    record.device.pools = {"trainer": 1, "rollout": 1}
    split_proof(run, 11, "fsdp-language_model", "0")
    split_proof(run, 12, "rollout-worker", "0")
    log(run, 1)
    with pytest.raises(JobFailedError, match="trainer and rollout share devices") as caught:
        make([("RUNNING", ALIVE)]).follow()
    assert "n1:0" in str(caught.value)


def test_pools_of_their_own_are_a_proof(make: Make, run: RunDirectory, record: RunRecord) -> None:
    record.device.pools = {"trainer": 1, "rollout": 1}
    split_proof(run, 11, "fsdp-language_model", "0")
    split_proof(run, 12, "rollout-worker", "1")
    log(run, 1, 2, 3)
    make([("RUNNING", ALIVE), ("SUCCEEDED", [])]).follow()
    assert record.device.proven


def test_a_success_without_proofs_is_none(make: Make, run: RunDirectory) -> None:
    log(run, 1)
    with pytest.raises(JobFailedError, match="0 proofs"):
        make([("SUCCEEDED", [])]).follow()


def test_probabilities_that_part_fail_the_run_at_once(make: Make, run: RunDirectory) -> None:
    log(run, 1, **{"training/rollout_probs_diff_max": 2e-5})
    prove(run, 11, 12)
    with pytest.raises(JobFailedError, match=r"probabilities differ by 2\.00e-05 at step 1"):
        make([("RUNNING", ALIVE)]).follow()
    log(run, 2, **{"training/rollout_probs_diff_max": 2e-5})
    assert make([("SUCCEEDED", [])], differences={}).follow()


def test_so_do_log_perplexities_that_part(make: Make, run: RunDirectory) -> None:
    log(run, 1, **{"rollout_corr/log_ppl_abs_diff": 2e-6})
    prove(run, 11, 12)
    with pytest.raises(JobFailedError, match=r"differ by 2\.00e-06 at step 1") as caught:
        make([("RUNNING", ALIVE)]).follow()
    assert "accept.log_ppl_abs_diff_max" in str(caught.value)


def test_a_vanished_engine_is_a_failure_although_ray_sees_nothing(make: Make, run: RunDirectory) -> None:
    command = ["sglang::scheduler", "-c", "import time; time.sleep(60)"]
    engine = subprocess.Popen(command, executable=sys.executable)

    class Engines:
        def refresh(self) -> list[psutil.Process]:
            return [psutil.Process(engine.pid)] if engine.poll() is None else []

    def build(status: str) -> Follower:
        return make([("RUNNING", ALIVE), (status, ALIVE)], owned=Engines(), tend=tend)

    looks = []

    def tend() -> None:
        looks.append(1)
        if len(looks) == 2:
            engine.kill()
            engine.wait(timeout=10)

    prove(run, 11, 12)
    with pytest.raises(JobFailedError, match=rf"engine process .*\(pid {engine.pid}, node {platform.node()}"):
        build("RUNNING").follow()


def test_a_plugin_that_did_not_load_is_the_cause(make: Make, run: RunDirectory) -> None:
    (run.proofs / "failed-11.txt").write_text("ImportError: no torch_musa\n")
    with pytest.raises(
        JobFailedError, match=r"plugin did not load .* failed-11.txt: ImportError: no torch_musa"
    ):
        make([("FAILED", [])]).follow()


def test_a_killed_driver_is_told(make: Make) -> None:
    follower = make([("FAILED", [])])
    vars(follower.ground.api)["code"] = 137
    with pytest.raises(JobFailedError, match="its driver was killed by SIGKILL"):
        follower.follow()


def gate_found(run: RunDirectory, status: str) -> None:
    entry = {
        "check": "gate.logprobs",
        "looks_at": "x",
        "status": status,
        "evidence": "apart",
        "fix": "mend",
        "where": "",
    }
    (run.logs / "gate.json").write_text(json.dumps({"schema": 1, "checks": [entry], "figures": {}}))


@pytest.mark.parametrize("status", ["RUNNING", "FAILED"])
def test_a_gate_that_failed_is_the_cause_and_not_the_workers_that_end_with_the_job(
    make: Make, run: RunDirectory, status: str
) -> None:
    gate_found(run, "FAIL")
    with pytest.raises(JobFailedError, match=r"gate failed before step 1: gate\.logprobs"):
        make([("RUNNING", ALIVE), (status, [DEAD, ALIVE[1]])]).follow()


def test_a_job_of_the_gate_alone_succeeds_without_a_step_and_its_engines_may_go_first(
    make: Make, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate_found(run, "OK")
    prove(run, 11, 12)
    follower = make([("RUNNING", ALIVE), ("RUNNING", ALIVE), ("SUCCEEDED", [])], gate_only=True)
    gone = Death("engine process 'sglang::scheduler'", 12, "here", "the process vanished")
    monkeypatch.setattr(follower.ground, "engine_death", lambda **_: gone)
    assert follower.follow() == {}
    assert isinstance(follower.display, Shown)
    assert "the job's end, after its gate" in follower.display.lines
