from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from verl_musa.cluster.fleet import MARK
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.ssh import Done
from verl_musa.errors import RunError
from verl_musa.fileio import write_json
from verl_musa.recipe import Site
from verl_musa.run import control
from verl_musa.run.control import health, host_states, stop
from verl_musa.run.directory import RunDirectory
from verl_musa.run.logs import Wanted, show_logs
from verl_musa.run.record import ClusterFacts, HostFacts, ProcessFacts, RunRecord, load_record
from verl_musa.run.runs import all_runs, find_named, find_of_recipe
from verl_musa.run.supervisor_state import asked_to_stop, state_file


@dataclass
class Agents:
    answers: dict[str, Any]
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
        assert timeout_s > 0
        self.calls.append((host.name, argv[-1], json.loads(stdin)))
        answer = self.answers[host.name]
        if isinstance(answer, int):
            return Done(host.name, answer, b"", "ssh: No route to host", 0.1)
        return Done(host.name, 0, f"{MARK}{json.dumps(answer)}\n".encode(), "", 0.1)


@pytest.fixture
def several(run: RunDirectory, record: RunRecord) -> RunRecord:
    record.cluster = ClusterFacts(nodes=2, devices_per_node=1, hosts=["a", "b"], head="a", site="", shared="")
    record.attempt.hosts = [
        HostFacts(
            name=name,
            ssh=f"{name}.example",
            address=f"198.51.100.{n}",
            interface="eth1",
            hostname=name,
            head=n == 1,
        )
        for n, name in enumerate("ab", 1)
    ]
    record.save(run.record)
    return record


def sign(
    run: RunDirectory, process: psutil.Process | None, *, host: str | None = None, over: bool = False
) -> None:
    pid, started = (process.pid, process.create_time()) if process else (2**22 + 1, 1.0)
    write_json(
        state_file(run),
        {"pid": pid, "started": started, "host": host or platform.node(), "beat": 1, "over": over},
    )


STOPPED = {"state": "none", "ended": 2, "problems": []}


def test_how_a_run_stands(run: RunDirectory, several: RunRecord) -> None:
    assert health(run, several).status == "abandoned"
    sign(run, psutil.Process())
    assert health(run, several).status == "running"
    sign(run, None)
    now = health(run, several)
    assert now.status == "abandoned"
    assert f"verl-musa stop {run.path.name}" in now.note
    sign(run, None, host="elsewhere")
    assert health(run, several).status == "running"  # a fresh sign of another machine
    several.set_status("failed", "it broke\nbadly")
    assert health(run, several) == control.Health("failed", "it broke")


def test_a_run_on_one_host_stands_by_its_runner(run: RunDirectory, record: RunRecord) -> None:
    record.host = platform.node()
    assert health(run, record).status == "abandoned"
    me = psutil.Process()
    record.attempt.runner = ProcessFacts(pid=me.pid, started=me.create_time())
    assert health(run, record).status == "running"


def test_an_abandoned_run_is_ended_on_all_its_hosts(run: RunDirectory, several: RunRecord) -> None:
    assert several.status == "running"
    agents = Agents({"a": STOPPED, "b": STOPPED})
    assert stop(run, Site(), lambda _: None, remote=agents) == 0
    assert sorted((host, verb) for host, verb, _ in agents.calls) == [("a", "stop"), ("b", "stop")]
    record = load_record(run.record)
    assert (record.status, record.exit_reason) == ("interrupted", "stopped; its supervisor was gone")
    assert stop(run, Site(), lambda _: None, remote=agents) == 0  # again


def test_a_silent_host_is_told_by_the_exit_code(run: RunDirectory, several: RunRecord) -> None:
    assert several.attempt.hosts
    told: list[str] = []
    assert stop(run, Site(), told.append, remote=Agents({"a": STOPPED, "b": 255})) == 3
    assert any(line.startswith("b: not taken down") for line in told)


def test_a_living_supervisor_is_asked_and_signalled(run: RunDirectory, several: RunRecord) -> None:
    assert several.status == "running"
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    sign(run, psutil.Process(child.pid))
    agents = Agents({"a": STOPPED, "b": STOPPED})
    assert stop(run, Site(), lambda _: None, wait_s=20, remote=agents) == 0
    assert child.wait(timeout=20) != 0
    assert "@" in str(asked_to_stop(run))


def test_a_supervisor_elsewhere_is_asked_by_a_file(run: RunDirectory, several: RunRecord) -> None:
    assert several.status == "running"
    sign(run, None, host="elsewhere")
    told: list[str] = []
    agents = Agents({"a": STOPPED, "b": STOPPED})
    assert stop(run, Site(), told.append, wait_s=0.1, remote=agents) == 0
    assert asked_to_stop(run) is not None
    assert any("ending what is left" in line for line in told)


def test_a_run_on_one_host_is_ended_by_its_runner(run: RunDirectory, record: RunRecord) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    record.host = platform.node()
    record.attempt.runner = ProcessFacts(pid=child.pid, started=psutil.Process(child.pid).create_time())
    record.save(run.record)
    assert stop(run, Site(), lambda _: None, wait_s=20) == 0
    assert child.wait(timeout=20) != 0
    assert load_record(run.record).status == "interrupted"


def test_a_run_on_one_other_machine_cannot_be_ended_from_here(run: RunDirectory, record: RunRecord) -> None:
    assert record.host == "here"
    with pytest.raises(RunError, match="on another machine"):
        stop(run, Site(), lambda _: None)


def test_hosts_say_how_they_are(several: RunRecord) -> None:
    found = host_states(several, Site(), Agents({"a": {"state": "up"}, "b": 255}))
    assert found["a"].ok
    assert found["b"].unreachable
    several.attempt.hosts = []
    assert host_states(several, Site(), Agents({})) == {}


def test_logs_of_a_run_that_goes_on_come_from_its_hosts(run: RunDirectory, several: RunRecord) -> None:
    several.attempt.submission_id = "job-1"
    several.save(run.record)
    sign(run, psutil.Process())
    agents = Agents({"a": {"files": ["raylet.out"], "text": "from a"}, "b": 255})
    said: list[str] = []
    assert show_logs(run, Site(), Wanted(), said.append, remote=agents) == 0
    assert said == ["from a"]
    assert agents.calls == [("a", "logs", {"cluster": run.path.name, "lines": 50, "job": "job-1"})]
    said.clear()
    assert show_logs(run, Site(), Wanted(worker="7"), said.append, remote=agents) == 3
    assert said[0] == "== a"
    assert "does not answer" in said[-1]


def test_logs_of_a_run_that_has_ended_come_from_its_directory(run: RunDirectory, several: RunRecord) -> None:
    several.attempt.submission_id = "job-1"
    several.set_status("failed", "x")
    several.save(run.record)
    for name in "ab":
        folder = run.logs / "ray" / "attempt-1" / name
        folder.mkdir(parents=True)
        (folder / "worker-x-01-7.err").write_text(f"words of {name}\n")
    (folder.parent / "a" / "job-driver-job-1.log").write_text("one\ntwo\n")
    said: list[str] = []
    assert show_logs(run, Site(), Wanted(lines=1), said.append) == 0
    assert said == ["two"]
    said.clear()
    show_logs(run, Site(), Wanted(host="b", worker="7"), said.append)
    assert said == ["words of b"]
    said.clear()
    show_logs(run, Site(), Wanted(host="a", files=True), said.append)
    assert said == ["job-driver-job-1.log", "worker-x-01-7.err"]


@pytest.mark.parametrize(
    "wanted", [Wanted(host="z"), Wanted(worker="7; id"), Wanted(name="../run.json"), Wanted(name=".x")]
)
def test_hostile_wishes_are_refused(run: RunDirectory, several: RunRecord, wanted: Wanted) -> None:
    assert several.cluster is not None
    with pytest.raises(RunError):
        show_logs(run, Site(), wanted, lambda _: None, remote=Agents({}))


def test_runs_are_found_here_and_in_the_shared_folder(
    run: RunDirectory, record: RunRecord, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    other = RunDirectory(shared / "runs" / "x" / "20260202T000000Z-ffffff")
    other.create()
    record.save(other.record)
    site, here = Site(shared=str(shared)), tmp_path / "runs"
    assert find_named("20260202", here, site).path == other.path
    assert find_named("20260101", here, site).path == run.path
    assert find_named(str(other.path), here, site).path == other.path
    with pytest.raises(RunError, match="several runs begin"):
        find_named("2026", here, site)
    assert find_of_recipe("2026", "x", here, site).path == other.path  # the other one is another recipe's
    assert find_of_recipe("2026", "fake_recipe", here, site).path == run.path
    with pytest.raises(RunError, match="no run begins"):
        find_of_recipe("2027", "x", here, site)
    with pytest.raises(RunError, match="no run begins"):
        find_named("2027", here, site)
    other.record.write_text("{")
    assert [(one.path.name[:8], found is None) for one, found in all_runs(here, site)] == [
        ("20260101", False),
        ("20260202", True),
    ]
