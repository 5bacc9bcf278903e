from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from verl_musa.cluster.bring_up import Cluster
from verl_musa.cluster.fleet import MARK, Fleet, Member
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.jobs_api import RayApiError
from verl_musa.cluster.ssh import Done
from verl_musa.recipe.site import RayPorts
from verl_musa.run import several_ground
from verl_musa.run.several_ground import SeveralGround

UP: dict[str, Any] = {"state": "up", "ended": None, "engines_gone": [], "time": 1000.0}
DEAD = "health check failed due to missing too many heartbeats"


@dataclass
class Agents:
    """The hosts' answers to ``status`` and ``logs``; an int is an exit code of ssh."""

    status: dict[str, Any]
    log: str = ""

    def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
        assert timeout_s > 0
        assert stdin
        answer = self.status[host.name] if argv[-1] == "status" else {"files": [], "text": self.log}
        if isinstance(answer, int):
            return Done(host.name, answer, b"", "ssh: No route to host", 0.1)
        return Done(host.name, 0, f"{MARK}{json.dumps(answer)}\n".encode(), "", 0.1)


@dataclass
class Api:
    rows: list[dict[str, Any]] = field(default_factory=list)
    silent: bool = False
    driver: str = ""

    def nodes(self) -> list[dict[str, Any]]:
        if self.silent:
            raise RayApiError("connection refused")
        return self.rows

    def job_logs(self, _: str) -> str:
        if self.silent:
            raise RayApiError("connection refused")
        return self.driver


def row(number: int, state: str = "ALIVE", **more: Any) -> dict[str, Any]:
    return {
        "node_id": f"id{number}",
        "node_ip": f"198.51.100.{number}",
        "state": state,
        "resources_total": {"GPU": 1},
        **more,
    }


Make = Callable[..., tuple[SeveralGround, Agents, Api, list[str]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(several_ground, "BLAME_S", 0.0)

    def build(**status: Any) -> tuple[SeveralGround, Agents, Api, list[str]]:
        agents = Agents({"node1": UP, "node2": UP, **status})
        api = Api([row(1), row(2)])
        told: list[str] = []
        hosts = [
            Member(
                Host(f"node{n}", f"192.0.2.{n}", head=n == 1),
                f"198.51.100.{n}",
                "eth1",
                f"192.0.2.{n}",
                8,
                f"name{n}",
            )
            for n in (1, 2)
        ]
        cluster = Cluster("run-1", "me@here", hosts, 1, 8, RayPorts())
        ground = SeveralGround(cluster, Fleet(agents, "python"), told.append, pause=lambda _: None)
        vars(ground)["_api"] = api
        return ground, agents, api, told

    return build


def looked(ground: SeveralGround) -> SeveralGround:
    vars(ground)["_looked"] = -1e9
    ground.look()
    assert ground._looking is not None
    ground._looking.join(10)
    return ground


def test_hosts_that_are_well_are_not_lost(make: Make) -> None:
    ground, *_ = make()
    assert ground.lost() is None  # before the first look
    assert looked(ground).lost() is None
    assert ground.blame("") is None


def test_a_look_never_waits_and_comes_at_its_interval(make: Make) -> None:
    ground, *_ = make()
    looked(ground)
    thread = ground._looking
    ground.look()
    assert ground._looking is thread


def test_a_host_that_ray_calls_dead_is_named_with_what_ssh_says(make: Make) -> None:
    ground, _, api, told = make(node2=255)
    api.rows[1] = row(2, "DEAD", state_message=DEAD)
    lost = looked(ground).lost()
    assert lost is not None
    assert (
        str(lost)
        == f"host node2 is lost: Ray calls it DEAD ({DEAD}); ssh: exit code 255: ssh: No route to host"
    )
    assert told == ["host node2 does not answer: exit code 255: ssh: No route to host"]


def test_a_host_that_ssh_still_reaches_is_told_so(make: Make) -> None:
    ground, _, api, _ = make()
    api.rows[1] = row(2, "DEAD", state_message=DEAD)
    assert "ssh still reaches it" in str(looked(ground).lost())


def test_a_ray_that_has_ended_on_a_host_is_a_lost_host(make: Make) -> None:
    ground, *_ = make(node2={**UP, "state": "ended", "ended": "raylet [exit code=-9]"})
    assert "node2 is lost: its Ray has ended: raylet [exit code=-9]" in str(looked(ground).lost())
    ground, *_ = make(node2={**UP, "state": "none"})
    assert "nothing of it is left there" in str(looked(ground).lost())


def test_a_host_that_is_silent_is_not_lost_as_long_as_ray_has_it(make: Make) -> None:
    ground, agents, _, told = make(node2=255)
    assert looked(looked(looked(ground))).lost() is None
    agents.status["node2"] = UP
    looked(ground)
    assert told[-1] == "host node2 answers again"


def test_a_silent_dashboard_alone_is_no_lost_head(make: Make) -> None:
    ground, _, api, _ = make()
    api.silent = True
    assert looked(looked(ground)).lost() is None


def test_a_head_that_is_silent_both_ways_is_lost_at_the_second_look(make: Make) -> None:
    ground, _, api, _ = make(node1=255)
    api.silent = True
    assert looked(ground).lost() is None
    assert "the head answers neither ssh" in str(looked(ground).lost())


def test_blame_names_a_silent_host_once_its_bound_has_run_out(make: Make) -> None:
    ground, *_ = make(node2=255)
    assert "node2 is lost: it does not answer ssh" in str(ground.blame(""))


def test_blame_waits_for_what_ray_says(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_ground, "BLAME_S", 60.0)
    ground, _, api, _ = make(node2=255)

    def later(_: float) -> None:
        api.rows[1] = row(2, "DEAD", state_message=DEAD)

    vars(ground)["_pause"] = later
    assert DEAD in str(ground.blame(""))


def test_blame_gives_ray_time_where_the_words_smell_of_a_lost_host(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_ground, "BLAME_S", 60.0)
    ground, _, api, _ = make()

    def later(_: float) -> None:
        api.rows[1] = row(2, "DEAD", state_message=DEAD)

    vars(ground)["_pause"] = later
    assert ground.blame("ValueError: the loss is not a number") is None
    assert DEAD in str(ground.blame("ActorUnavailableError: Socket closed rpc_code: 14"))


def test_a_node_that_came_back_is_not_lost(make: Make) -> None:
    ground, _, api, _ = make()
    api.rows += [row(2, "DEAD")]
    assert looked(ground).lost() is None


def test_a_dead_worker_is_described_with_its_hosts_name_and_last_words(make: Make) -> None:
    ground, agents, _, _ = make()
    agents.log = "last words"
    looked(ground)
    context = {"reason": "WORKER_DIED", "error_message": "gone", "node_ip_address": "198.51.100.2"}
    death = ground.describe(
        {"class_name": "WorkerDict", "pid": 7, "node_id": "id2", "death_cause": {"x": context}}
    )
    assert (death.node, death.pid, death.last_lines) == ("node2 (198.51.100.2)", 7, "last words")
    stranger = ground.describe({"class_name": "W", "pid": 7, "node_id": "id9", "death_cause": {}})
    assert stranger.last_lines == ""


def test_the_engine_that_vanished_first_is_told(make: Make) -> None:
    def gone(pid: int, when: float) -> Mapping[str, Any]:
        return {"pid": pid, "title": "sglang::scheduler", "parent": 5, "gone": when}

    ground, *_ = make(
        node1={**UP, "engines_gone": [gone(8, 995.0)]}, node2={**UP, "engines_gone": [gone(9, 990.0)]}
    )
    assert ground.engine_death(older_than_s=0.0) is None
    looked(ground)
    death = ground.engine_death(older_than_s=8.0)
    assert death is not None
    assert (death.pid, death.node) == (9, "node2 (198.51.100.2)")
    assert ground.engine_death(older_than_s=11.0) is None


def test_equal_pids_of_two_hosts_are_two_workers(make: Make) -> None:
    ground, *_ = make()
    looked(ground)
    ones = {ground.who({"pid": 7, "node_id": f"id{n}"}) for n in (1, 2)}
    assert ones == {("name1", 7), ("name2", 7)}
    assert ground.who_proved({"pid": 7, "node": "name2"}) in ones


def test_the_drivers_words_come_from_the_api_else_from_the_head(make: Make) -> None:
    ground, agents, api, _ = make()
    api.driver = "a\n\nTotal training steps: 20\n"
    agents.log = "from the agent"
    assert ground.driver_said("job") == "a\nTotal training steps: 20"
    assert ground.total_steps("job") == 20
    api.silent = True
    assert ground.driver_said("job") == "from the agent"
    assert ground.total_steps("job") is None


def test_a_process_that_stands_still_is_told_once(make: Make) -> None:
    stopped = [{"pid": 163, "title": "ray::Trainer.step"}]
    ground, _, _, told = make(node2={**UP, "stopped": stopped})
    assert looked(looked(ground)).lost() is None
    assert told == [
        "host node2: process 163 (ray::Trainer.step) is stopped; `kill -CONT 163` there lets it go on"
    ]
