from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from verl_musa.cluster import agent
from verl_musa.cluster.fleet import MARK, failure, members, try_members
from verl_musa.cluster.hosts import Host
from verl_musa.errors import HostError
from verl_musa.recipe import Site
from verl_musa.recipe.site import Networks

HOSTS = (Host("node1", "192.0.2.11", head=True), Host("node2", "192.0.2.12"))
TRAINING = Site(networks=Networks(management="192.0.2.0/24", training="198.51.100.0/24"))
Answers = Callable[[str, str, Mapping[str, Any]], Any]


def facts(host: str, **changes: Any) -> dict[str, Any]:
    number = host.removeprefix("node")
    return {
        "hostname": f"{host}.local",
        "addresses": {
            "lo": ["127.0.0.1", "::1"],
            "eth0": [f"192.0.2.1{number}", "fe80::1"],
            "eth1": [f"198.51.100.1{number}", "2001:db8::1"],
        },
        "connected_by": [f"192.0.2.1{number}"],
        "named": [],
        "cpus": 16,
        "time": 1000.0,
        "utc_offset_s": 28800,
        **changes,
    }


def test_both_sides_mark_an_answer_alike() -> None:
    assert agent.MARK == MARK


def clock() -> float:
    return 1000.0


def test_hosts_are_who_they_are_in_the_training_network(make_fleet: Any) -> None:
    fleet, remote = make_fleet(lambda host, *_: facts(host))
    found = members(fleet, HOSTS, TRAINING, clock)
    assert [(m.name, m.address, m.interface, m.management) for m in found] == [
        ("node1", "198.51.100.11", "eth1", "192.0.2.11"),
        ("node2", "198.51.100.12", "eth1", "192.0.2.12"),
    ]
    assert found[0].utc_offset == 28800
    assert {request["name"] for _, _, request in remote.calls} == {"192.0.2.11", "192.0.2.12"}


@pytest.mark.parametrize(
    ("site", "host", "expected"),
    [
        (Site(networks=Networks(training="eth1")), Host("node1", "h"), ("198.51.100.11", "eth1")),
        (Site(networks=Networks(training="2001:db8::/32")), Host("node1", "h"), ("2001:db8::1", "eth1")),
        (Site(), Host("node1", "h", training="198.51.100.11"), ("198.51.100.11", "eth1")),
        (Site(), Host("node1", "192.0.2.11"), ("192.0.2.11", "eth0")),
    ],
)
def test_the_address_by_interface_network_host_or_connection(
    make_fleet: Any, site: Site, host: Host, expected: tuple[str, str]
) -> None:
    fleet, _ = make_fleet(lambda host, *_: facts(host))
    (found,) = members(fleet, [host], site, clock)
    assert (found.address, found.interface) == expected


def test_a_name_is_looked_up_on_the_host_where_ssh_tells_nothing(make_fleet: Any) -> None:
    fleet, _ = make_fleet(lambda host, *_: facts(host, connected_by=[], named=["198.51.100.11"]))
    (found,) = members(fleet, [Host("node1", "node1")], Site(), clock)
    assert found.interface == "eth1"


def test_a_host_outside_of_the_network_is_named_with_what_it_has(make_fleet: Any) -> None:
    fleet, _ = make_fleet(lambda host, *_: facts(host, addresses={"eth0": ["192.0.2.9"]}))
    with pytest.raises(HostError, match="no address in the training network") as caught:
        members(fleet, HOSTS, TRAINING, clock)
    assert caught.value.where == "node1"
    assert "eth0 192.0.2.9" in str(caught.value.found)
    assert "node2" in str(caught.value.found)


def test_those_that_answer_are_told_from_those_that_do_not(make_fleet: Any) -> None:
    fleet, _ = make_fleet(lambda host, *_: facts(host) if host == "node1" else 255)
    found, wrong = try_members(fleet, HOSTS, TRAINING, clock)
    assert [m.name for m in found] == ["node1"]
    assert "does not answer" in wrong["node2"].message
    assert "No route to host" in str(wrong["node2"].found)


@pytest.mark.parametrize(
    ("answer", "said", "unreachable"),
    [
        (255, "No route to host", True),
        (127, "exit code 127", False),
        (b"Welcome to node1\n", "gave no answer", False),
        (f"{MARK}{{\n".encode(), "gave no answer", False),
        (f"{MARK}[1]\n".encode(), "gave no answer", False),
    ],
)
def test_no_answer_is_told_from_a_host_that_is_away(
    make_fleet: Any, answer: Any, said: str, unreachable: bool
) -> None:
    fleet, _ = make_fleet(lambda *_: answer)
    one = fleet.call(HOSTS[0], "facts", {})
    assert not one.ok
    assert one.unreachable is unreachable
    assert said in str(failure(one, "asking"))


def test_an_agents_own_error_keeps_its_words(make_fleet: Any) -> None:
    fleet, _ = make_fleet(
        lambda *_: {"error": {"message": "port 6379 is taken", "found": "process 7", "fix": "end it"}}
    )
    error = failure(fleet.call(HOSTS[0], "start", {}), "starting")
    assert (error.where, error.message, error.found, error.fix) == (
        "node1",
        "port 6379 is taken",
        "process 7",
        "end it",
    )
