"""Who is blamed for calls that failed, and what the checks of the network say of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.preflight.conftest import MakeView, calls_of
from verl_musa.checks import Result, Status
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight import CHECKS
from verl_musa.cluster.preflight.mesh import Fault, Mesh, ephemeral_ports, ports_of
from verl_musa.cluster.preflight.phases import neighbours
from verl_musa.cluster.preflight.view import View, check_hosts
from verl_musa.recipe.site import RayPorts

PORTS = (6379, 6381, 40000)


def _mesh(count: int, failed: dict[tuple[int, int], dict[int, str]]) -> dict[str, dict[str, Any]]:
    """What hosts say where calls from one to another on some ports failed."""
    values = {f"node{number}": calls_of(number, count) for number in range(1, count + 1)}
    for (caller, called), ports in failed.items():
        for port, status in ports.items():
            values[f"node{caller}"]["calls"][f"node{called}"][str(port)] = {
                "status": status,
                "ms": 0.0,
                "error": "",
            }
    return values


def _results(view: View, check: str) -> dict[str, Result]:
    return {
        r.host: r
        for r in check_hosts(tuple(one for one in CHECKS if one.name == check), view, view.answering)
    }


ALL = dict.fromkeys(PORTS, "dropped")


def test_a_host_that_nobody_can_call_is_to_blame() -> None:
    found = Mesh(_mesh(4, {(caller, 3): ALL for caller in (1, 2, 4)})).faults
    assert found == [Fault("node3", "incoming", "dropped", ("node1", "node2", "node4"), PORTS)]


def test_so_is_one_that_can_call_nobody() -> None:
    found = Mesh(_mesh(4, {(3, called): ALL for called in (1, 2, 4)})).faults
    assert found == [Fault("node3", "outgoing", "dropped", ("node1", "node2", "node4"), PORTS)]


def test_one_that_is_cut_off_both_ways_is_the_only_one_named() -> None:
    pairs = {(caller, 3): ALL for caller in (1, 2, 4)} | {(3, called): ALL for called in (1, 2, 4)}
    assert {(fault.host, fault.direction) for fault in Mesh(_mesh(4, pairs)).faults} == {
        ("node3", "incoming"),
        ("node3", "outgoing"),
    }


def test_of_a_pair_the_called_one_is_named_with_its_caller() -> None:
    assert Mesh(_mesh(4, {(2, 3): {6381: "refused"}})).faults == [
        Fault("node3", "incoming", "refused", ("node2",), (6381,))
    ]
    assert Mesh(_mesh(2, {(1, 2): {6381: "refused"}})).faults == [
        Fault("node2", "incoming", "refused", ("node1",), (6381,))
    ]


def test_faults_of_two_kinds_stay_apart() -> None:
    found = Mesh(_mesh(3, {(1, 2): {6379: "dropped", 6381: "refused"}})).faults
    assert [(fault.status, fault.ports) for fault in found] == [("dropped", (6379,)), ("refused", (6381,))]


def test_calls_to_a_port_that_nobody_listened_on_say_nothing() -> None:
    values = _mesh(3, {(1, 2): {6379: "refused"}})
    values["node2"]["bound"]["6379"] = "EADDRINUSE"
    assert not Mesh(values).faults
    del values["node2"]
    assert not Mesh(values).faults


@pytest.mark.parametrize(
    ("status", "says", "fix"),
    [
        (
            "dropped",
            "incoming: no answer from node1, node3 on TCP 6381 (Ray object_manager)",
            "a firewall drops these ports (into node2)",
        ),
        ("refused", "incoming: rejected from node1, node3", "a firewall rejects these ports (into node2)"),
        ("no route", "incoming: no route from node1, node3", "interface, cable and routes of node2"),
        ("stranger", "incoming: another program answered from node1, node3", "another host has this address"),
    ],
)
def test_the_kinds_are_told_apart(make_view: MakeView, status: str, says: str, fix: str) -> None:
    view = make_view(3)
    view.mesh.values.update(_mesh(3, {(caller, 2): {6381: status} for caller in (1, 3)}))  # type: ignore[attr-defined]
    found = _results(view, "net.reach")
    assert found["node2"].status is Status.FAIL
    assert says in found["node2"].evidence
    assert fix in found["node2"].fix
    assert {found["node1"].status, found["node3"].status} == {Status.OK}


def test_a_head_whose_port_is_not_reached(make_view: MakeView) -> None:
    view = make_view(3)
    view.mesh.values.update(_mesh(3, {(2, 1): {6379: "dropped"}}))  # type: ignore[attr-defined]
    result = _results(view, "ray.head")["node1"]
    assert (result.status, result.evidence) == (Status.FAIL, "198.51.100.1:6379 is not reached from node2")


def test_another_source_than_the_training_address(make_view: MakeView) -> None:
    view = make_view(3, mesh={"node1": {"callers/node2": "192.0.2.2"}})
    found = _results(view, "net.source")
    assert found["node2"].status is Status.FAIL
    assert "node1 saw its calls come from 192.0.2.2, not from 198.51.100.2" in found["node2"].evidence
    assert found["node3"].status is Status.OK


def _moved(seconds: float, got: int = 4 * 2**20) -> dict[str, Any]:
    return {"bytes": got, "wanted": 4 * 2**20, "seconds": seconds, "error": ""}


STALLED, SLOW, FAST = _moved(4.0, 0), _moved(0.2), _moved(0.02)


@pytest.mark.parametrize(
    ("bad", "move", "blamed", "says"),
    [
        ([("node3", "node2"), ("node3", "node4")], STALLED, "node3", (Status.FAIL, "0.0 of 4 MiB from node3 to node2 at 0.0 MB/s")),
        ([("node2", "node3"), ("node4", "node3")], STALLED, "node3", (Status.FAIL, "small messages pass, large ones do not")),
        ([("node2", "node3")], STALLED, "node2", (Status.FAIL, "from node2 to node3")),
        ([("node3", "node2"), ("node3", "node4")], SLOW, "node3", (Status.WARN, "at 21.0 MB/s; 4.0 of 4 MiB from node3")),
        ([("node3", "node2")], _moved(4.0, 2**20), "node3", (Status.WARN, "1.0 of 4 MiB from node3 to node2 at 0.3 MB/s; the median is 419.4")),
        ([("node3", "node2")], _moved(4.0, 20_000), "node3", (Status.WARN, "0.0 of 4 MiB from node3 to node2 at 0.0 MB/s; the median")),
        ([("node3", "node2")], FAST, None, None),
        ([("node3", "node2")], {"error": "not reached"}, None, None),
    ],
)  # fmt: skip
def test_a_larger_transfer(
    make_view: MakeView,
    bad: list[tuple[str, str]],
    move: dict[str, Any],
    blamed: str | None,
    says: tuple[Status, str] | None,
) -> None:
    changes: dict[str, dict[str, Any]] = {}
    for sender, receiver in bad:
        changes.setdefault(receiver, {})[f"pulled/{sender}"] = move
    found = _results(make_view(4, mesh=changes), "net.transfer")
    odd = {name: result for name, result in found.items() if result.status is not Status.OK}
    assert list(odd) == ([blamed] if blamed else [])
    if blamed and says:
        assert odd[blamed].status is says[0]
        assert says[1] in odd[blamed].evidence


def test_without_a_transfer_nothing_is_said(make_view: MakeView) -> None:
    assert not _results(make_view(2, mesh={"node1": {"pulled": {}}, "node2": {"pulled": {}}}), "net.transfer")


def test_neighbours() -> None:
    assert neighbours(["a", "b", "c", "d"]) == {
        "a": ["b", "d"],
        "b": ["c", "a"],
        "c": ["d", "b"],
        "d": ["a", "c"],
    }
    assert neighbours(["a", "b"]) == {"a": ["b"], "b": ["a"]}


def test_ports() -> None:
    ray = RayPorts()
    head, worker = Host("a", "a", head=True), Host("b", "b")
    assert {6379, 8265} <= set(ports_of(ray, head, [40000]))
    assert not {6379, 8265, 10001} & set(ports_of(ray, worker, [40000]))
    assert {6380, 6381, 20000, 24999, 40000} <= set(ports_of(ray, worker, [40000]))


def test_ephemeral_ports_are_such_that_every_host_could_hand_them_out() -> None:
    chosen = ephemeral_ports([[32768, 60999], [40000, 50000]], {40010, 40011})
    assert len(chosen) == 3
    assert chosen[0] == 40012
    assert all(40000 <= port <= 50000 for port in chosen)
    assert ephemeral_ports([[32768, 40000], [50000, 60999]], set()) == []
    assert ephemeral_ports([], set()) == []


def test_the_clock_of_a_host_is_taken_from_the_quickest_call_whoever_made_it() -> None:
    values = {"a": {"clocks": {"b": [2.0, 0.01]}}, "b": {"clocks": {"a": [-2.0, 0.01]}}}
    assert Mesh(values).clock_of("b", "a") == (2.0, 0.005)
    assert Mesh({"b": values["b"]}).clock_of("b", "a") == (2.0, 0.005)
    assert Mesh({}).clock_of("b", "a") is None
