"""Faults of a cluster that runs: on three hosts with a real Ray and a real job, each is named with its host and cause.

What preflight finds before a run is in test_preflight_hosts.py. Here the job runs already; what is asked afterwards is what a user
has: ``verl-musa cluster status``, and ``verl-musa triage`` over the logs of all hosts and the answers of Ray's API.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from ci.hosts import Host, Hosts, NoHostsError, Shape, faults, up, with_stack
from ci.hosts.model import SHARED
from ci.hosts.table import bound, note

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "faults"
UP_LIMIT_S = 700.0
JOB_LIMIT_S = 120.0
HEALTH_LIMIT_S = 240.0
"""Ray takes a minute to say that a node is dead that does not answer."""
VICTIM, LAST = 1, 2
ASK_S = 30.0

# One actor on each host, all of which take part in each step, as the ranks of a training job do. At step 20 the actor on the host with
# the address $2 does what $1 says.
JOB = """
import os, sys, time
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init(address="auto")

@ray.remote(num_gpus=1, num_cpus=0)
class Trainer:
    def where(self):
        return [ray.util.get_node_ip_address(), os.getpid()]

    def step(self, number, deed):
        time.sleep(0.1)
        if number == 20 and deed == "memory":
            kept = [bytes(b"x") * 2**20 for _ in range(100_000)]
        if number == 20 and deed == "disk":
            for part in range(100):
                with open(f"/srv/spill/{part}", "wb") as stream:
                    stream.write(bytes(2**20))
        return number

count = sum(node["Alive"] for node in ray.nodes())
group = ray.util.placement_group([{"GPU": 1}] * count, strategy="STRICT_SPREAD")
ray.get(group.ready())
actors = [Trainer.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)).remote() for index in range(count)]
places = ray.get([actor.where.remote() for actor in actors])
print("places", places, flush=True)
deeds = [sys.argv[1] if place[0] == sys.argv[2] else "" for place in places]
for number in range(10_000):
    ray.get([actor.step.remote(number, deed) for actor, deed in zip(actors, deeds)])
    print("step", number, flush=True)
"""

SIZES = """
import glob, json, os
print(json.dumps({path: os.path.getsize(path) for path in glob.glob("/tmp/vm-*/session_2*/logs/**", recursive=True) if os.path.isfile(path)}))
"""
# What was added to the logs since they had the sizes on standard input, into the folder $1.
COPY = """
import glob, json, os, sys
before = json.load(sys.stdin)
os.makedirs(sys.argv[1])
for path in glob.glob("/tmp/vm-*/session_2*/logs/*"):
    if os.path.isfile(path) and os.path.getsize(path) > before.get(path, 0):
        with open(path, "rb") as stream, open(os.path.join(sys.argv[1], os.path.basename(path)), "wb") as copy:
            stream.seek(before.get(path, 0))
            copy.write(stream.read())
"""


@dataclass(frozen=True)
class Running:
    """Hosts with a Ray of ours."""

    hosts: Hosts
    folder: Path
    logged: dict[str, dict[str, int]] = field(default_factory=dict)
    """Host -> log file -> size that it had when the job began."""

    dead: set[str] = field(default_factory=set)
    """Nodes that were dead before the job began."""

    kernel: dict[str, int] = field(default_factory=dict)
    """Host -> length that the kernel's log of it had then."""

    began: dict[str, str] = field(default_factory=dict)
    """Job -> when it was handed in."""

    lost: list[Host] = field(default_factory=list)
    """Hosts that are no longer part of it."""

    @property
    def url(self) -> str:
        return f"http://{self.hosts.head.management}:8265"

    def cli(self, *arguments: str, limit: float = 120.0) -> tuple[subprocess.CompletedProcess[str], float]:
        """`verl-musa …` of this checkout, on this machine, and how long it took."""
        start = time.monotonic()
        done = subprocess.run(
            self.hosts.verl_musa(*arguments),
            capture_output=True, text=True, check=False, timeout=limit, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return done, time.monotonic() - start

    def cluster(
        self, verb: str, *arguments: str, limit: float = 120.0
    ) -> tuple[subprocess.CompletedProcess[str], float]:
        return self.cli("cluster", verb, *arguments, "--site", str(self.hosts.site), limit=limit)

    def states(self) -> tuple[dict[str, str], int, float]:
        """What `verl-musa cluster status` says of each host, its exit code, and how long it took."""
        done, seconds = self.cluster("status", CLUSTER, "--json")
        (cluster,) = json.loads(done.stdout)["clusters"]
        return {row["host"]: row["state"] for row in cluster["hosts"]}, done.returncode, seconds

    def bring_up(self) -> None:
        done, _ = self.cluster(
            "up", "--id", CLUSTER, "--devices-per-node", "2", "--cpus-per-node", "2", limit=UP_LIMIT_S
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"

    def api(self, path: str) -> Any:
        answer = requests.get(f"{self.url}/api/{path}", timeout=ASK_S)
        answer.raise_for_status()
        return answer.json()

    def start_job(self, deed: str = "none") -> str:
        """Start the job, wait until all its actors take steps; return its id. What Ray logged before is forgotten."""
        for host in self.hosts.hosts:
            if host not in self.lost:
                self.logged[host.name] = json.loads(host.run(["python3", "-c", SIZES]))
                self.kernel[host.name] = len(host.kernel_log())
        self.dead.update(row["node_ip"] for row in self.nodes() if row["state"] == "DEAD")
        (self.hosts.shared / "job.py").write_text(JOB)
        words = [sys.executable, "-u", f"{SHARED}/job.py", deed, self.hosts[VICTIM].training]
        began = datetime.now(UTC).isoformat()
        answer = requests.post(f"{self.url}/api/jobs/", json={"entrypoint": " ".join(words)}, timeout=ASK_S)
        answer.raise_for_status()
        job = str(answer.json()["submission_id"])
        self.began[job] = began
        deadline = time.monotonic() + JOB_LIMIT_S
        while "step 5\n" not in self.said(job):
            assert time.monotonic() < deadline, self.said(job)
            time.sleep(0.5)
        return job

    def said(self, job: str) -> str:
        return str(self.api(f"jobs/{job}/logs")["logs"])

    def pid(self, job: str, host: Host) -> int:
        """The process of the job's actor on a host."""
        line = next(line for line in self.said(job).splitlines() if line.startswith("places"))
        return next(
            int(pid)
            for address, pid in json.loads(line.partition(" ")[2].replace("'", '"'))
            if address == host.training
        )

    def wait_for_end(self, job: str, limit: float = JOB_LIMIT_S) -> float:
        """Wait until the job has failed; return how long it took."""
        start = time.monotonic()
        while self.api(f"jobs/{job}")["status"] not in {"FAILED", "SUCCEEDED", "STOPPED"}:
            assert time.monotonic() - start < limit, f"the job goes on:\n{self.said(job)[-500:]}"
            time.sleep(0.5)
        return time.monotonic() - start

    def wait_for_death(self, host: Host) -> None:
        """Wait until Ray says that a host is dead."""
        deadline = time.monotonic() + HEALTH_LIMIT_S
        while not any(row["node_ip"] == host.training and row["state"] == "DEAD" for row in self.nodes()):
            assert time.monotonic() < deadline, self.nodes()
            time.sleep(1)

    def nodes(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.api("v0/nodes?detail=1&limit=1000")["data"]["result"]["result"]
        return rows

    def stop_job(self, job: str) -> None:
        requests.post(f"{self.url}/api/jobs/{job}/stop", timeout=ASK_S).raise_for_status()
        self.wait_for_end(job)

    def gather(self, name: str, job: str) -> Path:
        """What was logged since the job began, of all hosts that can be reached, by their addresses; and what Ray's API says."""
        folder = self.folder / name
        folder.mkdir()
        for host in self.hosts.hosts:
            if host not in self.lost:
                there = f"{SHARED}/logs-{name}/{host.training}"
                host.run(["python3", "-c", COPY, there], stdin=json.dumps(self.logged[host.name]))
                (self.hosts.shared / f"logs-{name}" / host.training).rename(folder / host.training)
                (folder / host.training / "dmesg.log").write_text(host.kernel_log()[self.kernel[host.name] :])
        id_of_job = self.api(f"jobs/{job}")["job_id"]
        actors = self.api("v0/actors?detail=1&limit=1000")["data"]["result"]["result"]
        rows = {
            "nodes": [row for row in self.nodes() if row["node_ip"] not in self.dead],
            "actors": [row for row in actors if row["job_id"] == id_of_job],
        }
        for what, some in rows.items():
            (folder / f"{what}.json").write_text(json.dumps({"data": {"result": {"result": some}}}))
        (folder / "job.json").write_text(json.dumps([self.api(f"jobs/{job}")]))
        return folder

    def card(self, folder: Path) -> tuple[dict[str, Any], float]:
        """The card of `verl-musa triage` for the last job, and how long it took."""
        since = list(self.began.values())[-1]  # Ray tells a new driver of workers that died before it
        done, seconds = self.cli("triage", str(folder), "--json", "--since", since)
        assert done.returncode in {2, 3}, done.stderr
        card: dict[str, Any] = json.loads(done.stdout)
        return card, seconds


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(
                up(with_stack(Shape(count=3, memory="2500m")), kind=os.environ.get("VERL_MUSA_HOSTS_KIND"))
            )
        except NoHostsError as error:
            pytest.skip(f"no hosts were brought up: {error}")
        made = Running(hosts, tmp_path_factory.mktemp("faults"))
        made.bring_up()
        yield made
        done, _ = made.cluster("down", CLUSTER)
        assert done.returncode == 0, done.stderr


def blamed(fault: str, running: Running, folder: Path, host: Host, *rules: str) -> None:
    """The card names one of these rules, and the host."""
    card, seconds = running.card(folder)
    assert card["rule"] in rules, json.dumps(card, indent=1)
    assert card["where"]["host"] in {host.name, host.training}, json.dumps(card, indent=1)
    assert card["fix"], card
    assert seconds < bound()
    note(fault, f"triage: {card['rule']}", host.name, seconds, card["what"])


def seen(fault: str, running: Running, host: Host, says: str) -> None:
    """`cluster status` says so of the host, and of no other; and does not end as if all were well."""
    states, code, seconds = running.states()
    assert says in states[host.name], states
    assert all(states[one.name] == "up" for one in running.hosts.hosts if one not in [host, *running.lost]), (
        states
    )
    assert code != 0
    assert seconds < bound()
    note(fault, "cluster status", host.name, seconds, states[host.name])


def test_nothing_is_wrong_where_nothing_is(running: Running) -> None:
    states, code, _ = running.states()
    assert states == {host.name: "up" for host in running.hosts.hosts}
    assert code == 0


def test_a_killed_worker(running: Running) -> None:
    victim = running.hosts[VICTIM]
    job = running.start_job()
    with faults.killed(victim, [running.pid(job, victim)]):
        running.wait_for_end(job)
    blamed("killed worker", running, running.gather("killed-worker", job), victim, "ray.worker-vanished")


def test_a_frozen_worker(running: Running) -> None:
    victim = running.hosts[VICTIM]
    job = running.start_job()
    pid = running.pid(job, victim)
    with faults.frozen(victim, [pid]):
        seen("frozen worker (SIGSTOP)", running, victim, f"stopped (SIGSTOP): {pid} ray::Trainer")
    running.stop_job(job)
    assert running.states()[1] == 0


def test_a_worker_that_takes_all_memory_of_its_host(running: Running) -> None:
    job = running.start_job("memory")
    running.wait_for_end(job)
    folder = running.gather("memory", job)
    blamed(
        "out of memory",
        running,
        folder,
        running.hosts[VICTIM],
        "os.cgroup-out-of-memory",
        "ray.memory-monitor",
    )


def test_a_full_disk_in_the_middle(running: Running) -> None:
    victim = running.hosts[VICTIM]
    victim.run(["mkdir", "-p", "/srv/spill"])
    with faults.full_disk(victim, "/srv/spill"):
        job = running.start_job("disk")
        running.wait_for_end(job)
    blamed("disk full in the middle of a run", running, running.gather("disk", job), victim, "os.no-space")


def test_a_second_cluster_is_refused(running: Running) -> None:
    done, seconds = running.cluster("up", "--id", "other", "--devices-per-node", "2")
    assert done.returncode == 2
    assert f"cluster {CLUSTER} of" in done.stderr
    assert seconds < bound()
    note("cluster of another run", "cluster up", "host1", seconds, done.stderr.strip().splitlines()[-1])
    assert running.states()[1] == 0, "and it goes on"


def test_preflight_finds_a_ray_that_runs(running: Running) -> None:
    done, seconds = running.cli("preflight", "--json", "--site", str(running.hosts.site))
    found = {one["host"]: one for one in json.loads(done.stdout)["checks"] if one["check"] == "ray.stale"}
    assert {name for name, one in found.items() if one["status"] == "FAIL"} == {
        host.name for host in running.hosts.hosts
    }
    assert seconds < bound()
    note("stale cluster (a real one)", "ray.stale", "host1", seconds, found["host1"]["evidence"])


def test_a_firewall_in_the_middle(running: Running) -> None:
    victim = running.hosts[LAST]
    job = running.start_job()
    with faults.port_drop(victim, "1-65535", device="eth1"):
        running.wait_for_end(job, HEALTH_LIMIT_S)
        running.lost.append(victim)
        folder = running.gather("firewall", job)
        blamed("firewall closes in the middle of a run", running, folder, victim, "ray.node-dead")
        states, code, _ = running.states()
        assert states[victim.name] in {"up, but not in Ray", "ended"}
        assert code == 1


def test_a_killed_host(running: Running) -> None:
    victim = running.hosts[VICTIM]
    job = running.start_job()
    with faults.killed_host(running.hosts, victim):
        running.wait_for_end(job, HEALTH_LIMIT_S)
        seen("killed host, by ssh", running, victim, "unknown: ")
        running.lost.append(victim)
        running.wait_for_death(victim)
        folder = running.gather("killed-host", job)
        blamed("killed host", running, folder, victim, "ray.node-dead")


def test_a_dead_dashboard(running: Running) -> None:
    head = running.hosts.head
    with faults.killed(head, faults.pids_of(head, "dashboard/dashboard.py")):
        # `ray start --block` ends with it.
        seen("dead dashboard", running, head, "ended")
