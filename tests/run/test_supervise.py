"""The supervisor's decisions; whole runs on several "hosts" are in test_several_runs.py."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_musa.cluster.hosts import Host
from verl_musa.cluster.jobs_api import Job, RayApiError
from verl_musa.cluster.preflight.view import Clock
from verl_musa.errors import HostError, HostLostError, JobFailedError
from verl_musa.recipe import Site
from verl_musa.run import RunOptions, retry, supervise
from verl_musa.run.directory import RunDirectory
from verl_musa.run.events import EventDisplay, EventReader, events_file
from verl_musa.run.layout import Layout
from verl_musa.run.record import ClusterFacts, RunRecord, load_record
from verl_musa.run.signals import InterruptedRunError
from verl_musa.run.supervise import Supervisor, options_from, options_json, stop_job
from verl_musa.run.supervisor_state import ask_to_stop, sign_of

FOUR = tuple(Host(f"node{n}", f"192.0.2.{n}", head=n == 1) for n in range(1, 5))


@dataclass
class Scripted(Supervisor):
    """A supervisor whose attempts end as ``ends`` says, in order; None: well."""

    def __init__(self, run: RunDirectory, ends: list[BaseException | None], **changes: Any) -> None:
        options = RunOptions(recipe="x", **changes.pop("options", {}))
        super().__init__(run, options, EventDisplay(events_file(run)), remote=SimpleNamespace(), **changes)
        self.ends = ends
        self.attempts: list[list[str]] = []
        self.concluded: list[tuple[str, str | None]] = []

    def _bring_up_and_follow(self, prepared: Any, layout: Layout) -> None:
        del prepared
        self.attempts.append([host.name for host in layout.hosts])
        end = self.ends.pop(0)
        if end is not None:
            raise end

    def _prepare_retry(self, layout: Layout) -> Any:
        del layout
        return SimpleNamespace(record=SimpleNamespace(attempt=SimpleNamespace(lost={})))

    def _end(self, prepared: Any, layout: Layout, status: Any, reason: str | None) -> None:
        del prepared, layout
        self.concluded.append((status, reason))


@dataclass
class World:
    """What the hosts are like when a retry looks for them; one set of usable hosts a look, the last one stays."""

    usable: list[set[str]] = field(default_factory=lambda: [{host.name for host in FOUR}])
    unfit: dict[str, int] = field(default_factory=dict)
    """Host -> number of preflights that it does not pass."""

    looks: int = 0
    preflights: list[list[str]] = field(default_factory=list)

    def try_members(self, _fleet: Any, hosts: Any, *_: Any) -> Any:
        names = self.usable[min(self.looks, len(self.usable) - 1)]
        self.looks += 1
        found = [SimpleNamespace(name=host.name) for host in hosts if host.name in names]
        return found, {
            host.name: HostError("the host does not answer") for host in hosts if host.name not in names
        }

    def look(self, _site: Any, hosts: Any, *_: Any, **__: Any) -> Any:
        names = [host.name for host in hosts]
        self.preflights.append(names)
        failed = [name for name in names if self.unfit.get(name)]
        for name in failed:
            self.unfit[name] -= 1
        results = [
            SimpleNamespace(host=name, check="path.exists", evidence="not there", fix="mount it")
            for name in failed
        ]
        return SimpleNamespace(failed=results, clocks={name: Clock(0.5, 0.001, 0) for name in names})


Make = Callable[..., Scripted]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(retry, "try_members", made.try_members)
    monkeypatch.setattr(retry, "look", made.look)
    monkeypatch.setattr(retry, "LOOK_S", 0.01)
    monkeypatch.setattr(Layout, "resolve", lambda *_, **__: None)
    return made


@pytest.fixture
def make(
    run: RunDirectory, record: RunRecord, monkeypatch: pytest.MonkeyPatch, world: World, tmp_path: Path
) -> Make:
    assert world.looks == 0
    record.cluster = ClusterFacts(nodes=3, devices_per_node=1, hosts=[], head="node1", site="", shared="")
    record.save(run.record)

    def build(ends: list[BaseException | None], *, nodes: int = 3, **changes: Any) -> Scripted:
        layout = Layout(Site(), tmp_path, tmp_path, FOUR[:nodes], FOUR[nodes:], 1)
        monkeypatch.setattr(supervise, "load_recipe", lambda *_, **__: None)
        monkeypatch.setattr(supervise, "lay_out", lambda *_: layout)
        monkeypatch.setattr(supervise, "restore", lambda *_: SimpleNamespace(record=record))
        return Scripted(run, ends, **changes)

    return build


def lost(*names: str) -> HostLostError:
    return HostLostError(f"host {names[0]} is lost: it was killed\n  with it a worker died", lost=names)


def test_a_run_without_trouble_has_one_attempt(make: Make) -> None:
    one = make([None])
    assert one.work() == 0
    assert one.attempts == [["node1", "node2", "node3"]]
    assert one.concluded == [("succeeded", None)]


def test_a_lost_host_ends_a_run_without_retries(make: Make, record: RunRecord) -> None:
    one = make([lost("node2")])
    with pytest.raises(HostLostError):
        one.work()
    assert one.concluded[0][0] == "failed"
    assert record.attempt.lost == {"node2": "host node2 is lost: it was killed"}


def test_a_retry_takes_the_spare_for_the_lost_host(make: Make) -> None:
    one = make([lost("node2"), None], options={"retries": 1})
    assert one.work() == 0
    assert one.attempts == [["node1", "node2", "node3"], ["node1", "node3", "node4"]]


def test_a_retry_looks_at_its_hosts_first_and_keeps_all_clocks(
    make: Make, world: World, run: RunDirectory
) -> None:
    run.clocks.write_text('{"schema": 1, "hosts": {"node2": {"ahead_s": 3.0, "utc_offset_s": 0}}}')
    one = make([lost("node2"), None], options={"retries": 1})
    assert one.work() == 0
    assert world.preflights == [["node1", "node3", "node4"]]
    hosts = json.loads(run.clocks.read_text())["hosts"]
    assert {name: clock["ahead_s"] for name, clock in hosts.items()} == {
        "node1": 0.5,
        "node2": 3.0,
        "node3": 0.5,
        "node4": 0.5,
    }


def test_a_spare_that_does_not_pass_preflight_gives_way_to_the_host_that_has_come_back(
    make: Make, world: World
) -> None:
    world.unfit = {"node4": 9}
    one = make([lost("node2"), None], options={"retries": 1})
    assert one.work() == 0
    assert world.preflights[0] == ["node1", "node3", "node4"]
    assert one.attempts[1] == ["node1", "node3", "node2"]


def test_hosts_that_do_not_pass_preflight_are_waited_for_within_the_bound(make: Make, world: World) -> None:
    world.unfit = {"node3": 2}
    one = make([lost("node2"), None], nodes=4, options={"retries": 1})
    assert one.work() == 0
    assert len(world.preflights) == 3
    world.unfit = {"node3": 10**6}
    one = make([lost("node2")], nodes=4, options={"retries": 1}, return_s=0.05)
    with pytest.raises(JobFailedError, match="the hosts that are left do not pass preflight") as caught:
        one.work()
    assert (caught.value.where, caught.value.found) == ("node3", "node3: path.exists: not there")


def test_a_retry_waits_for_the_host_to_come_back_where_there_is_no_spare(make: Make, world: World) -> None:
    world.usable = [
        {"node1", "node3", "node4"},
        {"node1", "node3", "node4"},
        {"node1", "node2", "node3", "node4"},
    ]
    one = make([lost("node2"), None], nodes=4, options={"retries": 1})
    assert one.work() == 0
    assert world.looks == 3
    assert one.attempts[1] == ["node1", "node3", "node4", "node2"]


def test_a_host_that_does_not_come_back_ends_it_with_a_clear_message(make: Make, world: World) -> None:
    world.usable = [{"node1", "node3", "node4"}]
    one = make([lost("node2")], nodes=4, options={"retries": 1}, return_s=0.05)
    with pytest.raises(JobFailedError, match="too few hosts are left to go on: 3 of 4") as caught:
        one.work()
    assert caught.value.where == "node2"


def test_the_head_is_waited_for_whatever_else_is_there(make: Make, world: World) -> None:
    world.usable = [{"node2", "node3", "node4"}]
    one = make([lost("node1")], options={"retries": 1}, return_s=0.05)
    with pytest.raises(JobFailedError, match="the head node1 has not come back"):
        one.work()


def test_retries_are_counted(make: Make) -> None:
    one = make([lost("node2"), lost("node3")], options={"retries": 1})
    with pytest.raises(HostLostError, match="node3"):
        one.work()
    assert len(one.attempts) == 2


def test_another_failure_is_not_tried_again(make: Make) -> None:
    one = make([JobFailedError("the loss is not a number")], options={"retries": 5})
    with pytest.raises(JobFailedError):
        one.work()
    assert len(one.attempts) == 1


def test_a_request_to_stop_is_heard_before_an_attempt_and_while_waiting(
    make: Make, run: RunDirectory, world: World
) -> None:
    ask_to_stop(run, "you@there")
    one = make([None])
    with pytest.raises(InterruptedRunError, match="stopped by you@there"):
        one.work()
    assert one.concluded == [("interrupted", "stopped by you@there")]
    assert world.looks == 0


def test_a_signal_interrupts_each_attempt(make: Make) -> None:
    class Killed(Scripted):
        def _bring_up_and_follow(self, prepared: Any, layout: Layout) -> None:
            if len(self.attempts) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            super()._bring_up_and_follow(prepared, layout)

    one = make([lost("node2"), None], options={"retries": 1})
    one.__class__ = Killed
    with pytest.raises(InterruptedRunError, match="SIGTERM"):
        one.work()
    assert one.concluded[-1] == ("interrupted", "interrupted by SIGTERM")


def test_the_last_event_says_how_it_ended(
    run: RunDirectory, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record.status == "running"

    class Fails:
        def __init__(self, *_: Any) -> None: ...

        def work(self) -> int:
            raise HostError("no hosts are known")

    monkeypatch.setattr(supervise, "Supervisor", Fails)
    assert supervise.supervise(run, RunOptions(recipe="x")) == 2
    *_, last = EventReader(events_file(run)).new()
    assert (last["kind"], last["code"]) == ("end", 2)
    assert "no hosts are known" in last["error"]
    assert load_record(run.record).status == "failed"
    sign = sign_of(run)
    assert sign is not None
    assert sign.over
    assert not sign.alive


def test_options_travel_whole() -> None:
    options = RunOptions(recipe="x", sets=("a=1",), site=Path("s"), hosts=("a slots=2",), retries=2, nodes=3)
    assert options_from(options_json(options)) == options
    assert json.loads(options_json(options))["site"] == "s"


@dataclass
class Api:
    states: list[str]
    stopped: int = 0

    def job(self, _: str) -> Job:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state == "SILENT":
            raise RayApiError("connection refused")
        return Job(state, "", None)

    def stop(self, _: str) -> None:
        self.stopped += 1


@pytest.mark.parametrize(
    ("states", "ended", "stopped"),
    [
        (["RUNNING", "STOPPED"], True, 1),
        (["SUCCEEDED"], True, 0),
        (["SILENT"], False, 0),
        (["RUNNING"], False, 1),
    ],
)
def test_a_job_is_stopped_first_within_a_bound(states: list[str], ended: bool, stopped: int) -> None:
    api = Api(states)
    assert stop_job(api, "job", timeout_s=0.0) is ended  # type: ignore[arg-type]
    assert api.stopped == stopped
