from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from verl_musa.cluster import bring_up as module
from verl_musa.cluster.bring_up import (
    Cluster,
    bring_up,
    check_id,
    forget_record,
    keep_record,
    known_clusters,
    missing_nodes,
    take_down,
)
from verl_musa.cluster.fleet import Member
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.jobs_api import RayApiError
from verl_musa.errors import HostError
from verl_musa.recipe import Site
from verl_musa.recipe.site import RayPorts


def cluster(count: int = 3, **changes: Any) -> Cluster:
    found = [
        Member(
            Host(f"node{n}", f"192.0.2.{n}", head=n == 1),
            f"198.51.100.{n}",
            "eth1",
            f"192.0.2.{n}",
            8,
            f"node{n}",
        )
        for n in range(1, count + 1)
    ]
    values: dict[str, Any] = {
        "num_gpus": 2,
        "num_cpus": 8,
        "ports": RayPorts(),
        "logs": Path("logs"),
        **changes,
    }
    return Cluster("run-1", "me@here", found, **values)


def node(number: int, state: str = "ALIVE", gpus: int = 2, **more: Any) -> dict[str, Any]:
    return {"node_ip": f"198.51.100.{number}", "state": state, "resources_total": {"GPU": gpus}, **more}


@dataclass
class Api:
    """Answers with one list of nodes after the other; the last one stays. None: no answer."""

    looks: list[list[dict[str, Any]] | None]
    seen: int = field(default=0)

    def nodes(self) -> list[dict[str, Any]]:
        found = self.looks[min(self.seen, len(self.looks) - 1)]
        self.seen += 1
        if found is None:
            raise RayApiError("connection refused")
        return found


def up(_host: str, verb: str, _request: Mapping[str, Any]) -> dict[str, Any]:
    return (
        {"state": "up", "already": False}
        if verb == "start"
        else {"state": "none", "ended": 3, "problems": []}
    )


def test_head_first_then_one_worker_after_the_other_then_two_looks(
    make_fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api([None, [node(1)], [node(1), node(2), node(3)]])
    monkeypatch.setattr(module, "JobsApi", lambda _: api)
    fleet, remote = make_fleet(up)
    pauses: list[float] = []
    bring_up(cluster(), fleet, lambda _: None, pause=pauses.append)
    assert remote.verbs() == [("node1", "start"), ("node2", "start"), ("node3", "start")]
    assert module.HEALTH_S in pauses
    assert api.seen == 4
    specs = [request["node"] for _, _, request in remote.calls]
    assert [spec["head"] for spec in specs] == [True, False, False]
    assert {spec["head_address"] for spec in specs} == {"198.51.100.1:6379"}
    assert {spec["dashboard_host"] for spec in specs} == {"0.0.0.0"}  # noqa: S104
    assert specs[1]["variables"]["GLOO_SOCKET_IFNAME"] == "eth1"
    assert specs[1]["logs"] == "logs/node2"


def test_a_large_cluster_joins_a_few_at_a_time(make_fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JobsApi", lambda _: Api([[node(n) for n in range(1, 21)]]))
    fleet, remote = make_fleet(up)
    bring_up(cluster(20), fleet, lambda _: None, health_s=0)
    assert len(remote.calls) == 20
    assert remote.calls[0][0] == "node1"


def test_a_host_that_does_not_come_up_is_named_and_ends_it(make_fleet: Any) -> None:
    def answers(host: str, verb: str, request: Mapping[str, Any]) -> Any:
        if host == "node2":
            return {"error": {"message": "port 6380 (node-manager-port) is taken", "found": "process 7"}}
        return up(host, verb, request)

    fleet, remote = make_fleet(answers)
    told: list[str] = []
    with pytest.raises(HostError, match="6380") as caught:
        bring_up(cluster(), fleet, told.append)
    assert caught.value.where == "node2"
    assert ("node3", "start") not in remote.verbs()
    assert any("node2: not up" in line for line in told)


def test_a_host_that_ray_loses_again_is_named_after_the_health_interval(
    make_fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = node(3, "DEAD", state_message="missing too many heartbeats")
    monkeypatch.setattr(
        module, "JobsApi", lambda _: Api([[node(1), node(2), node(3)], [node(1), node(2), lost]])
    )
    monkeypatch.setattr(module, "NODES_S", 0.0)
    fleet, _ = make_fleet(up)
    with pytest.raises(HostError, match="does not have all hosts") as caught:
        bring_up(cluster(), fleet, lambda _: None, pause=lambda _: None)
    assert "node3 (198.51.100.3) is DEAD: missing too many heartbeats" in str(caught.value.found)


def test_what_is_missing_in_ray() -> None:
    three = cluster()
    assert missing_nodes(three, [node(1), node(2), node(3)]) == []
    assert missing_nodes(three, [node(1), node(2)]) == ["node3 (198.51.100.3) is not there"]
    assert missing_nodes(three, [node(1), node(2), node(3, gpus=1)]) == [
        "node3 (198.51.100.3) offers 1 devices"
    ]
    assert missing_nodes(three, [node(n) for n in (1, 2, 3, 9)]) == ["198.51.100.9 is none of the hosts"]
    assert missing_nodes(three, [node(1), node(2, "DEAD"), node(2), node(3)]) == []  # it came back


def test_taking_down_tells_what_could_not_be_done(make_fleet: Any) -> None:
    def answers(host: str, *_: Any) -> Any:
        if host == "node1":
            return {"state": "none", "ended": 3, "problems": ["log x was shortened"]}
        return (
            255
            if host == "node2"
            else {"state": "none", "ended": 1, "problems": ["process 9 could not be ended"]}
        )

    fleet, _ = make_fleet(answers)
    problems = take_down("run-1", cluster().hosts, fleet, lambda _: None)
    assert set(problems) == {"node2", "node3"}
    assert "No route" in problems["node2"]


@pytest.mark.parametrize("text", ["", "../x", "-oProxyCommand=x", "a b", "a\nb", "ü", "x" * 101])
def test_what_cannot_be_an_id_is_refused(text: str, make_fleet: Any) -> None:
    with pytest.raises(HostError, match="no id"):
        check_id(text)
    fleet, remote = make_fleet(up)
    with pytest.raises(HostError):
        take_down(text, cluster().hosts, fleet, lambda _: None)
    assert remote.calls == []


def test_a_record_is_kept_found_and_forgotten(tmp_path: Path) -> None:
    site = Site(shared=str(tmp_path))
    keep_record(cluster(variables={"TOKEN": "opensesame"}), site)
    (found,) = known_clusters(site).values()
    assert (found.cluster, found.owner, found.num_gpus) == ("run-1", "me@here", 2)
    assert found.hosts[0] == Host("node1", "192.0.2.1", head=True)
    assert found.addresses["198.51.100.3"] == "node3"
    assert "opensesame" not in json.dumps([path.read_text() for path in tmp_path.rglob("*.json")])
    forget_record("run-1", site)
    assert known_clusters(site) == {}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"cluster": "../x", "owner": "", "url": "", "hosts": [], "num_gpus": 1}']
)
def test_a_damaged_record_is_left_out(tmp_path: Path, text: str) -> None:
    site = Site(shared=str(tmp_path))
    folder = tmp_path / ".verl-musa" / "clusters"
    folder.mkdir(parents=True)
    (folder / "x.json").write_text(text)
    assert known_clusters(site) == {}


def test_without_a_shared_folder_nothing_is_kept() -> None:
    with pytest.raises(HostError, match="no shared folder"):
        known_clusters(Site())
