from __future__ import annotations

import pytest

from verl_musa.cluster.hosts import Host, chosen, devices_of
from verl_musa.errors import HostError

HOSTS = tuple(Host(f"node{n}", f"node{n}", head=n == 1) for n in range(1, 5))


def with_slots(*slots: int | None) -> list[Host]:
    return [Host(f"node{n}", f"node{n}", slots=slot) for n, slot in enumerate(slots, 1)]


def test_hosts_beyond_the_needed_number_are_spares() -> None:
    some, spares = chosen(HOSTS, 3)
    assert [host.name for host in some] == ["node1", "node2", "node3"]
    assert [host.name for host in spares] == ["node4"]
    assert chosen(HOSTS, None) == (HOSTS, ())


def test_too_few_hosts_are_refused() -> None:
    with pytest.raises(HostError, match="5 hosts are needed and 4 are known"):
        chosen(HOSTS, 5)


def test_devices_are_what_is_asked_for_else_slots_else_the_default() -> None:
    assert devices_of(with_slots(8, 8), 4) == 4
    assert devices_of(with_slots(8, 8), None, 2) == 8
    assert devices_of(with_slots(None, None), None, 2) == 2
    assert devices_of(with_slots(8, 4), 4) == 4


def test_devices_that_cannot_be_are_refused() -> None:
    with pytest.raises(HostError, match="not known"):
        devices_of(with_slots(None), None)
    with pytest.raises(HostError, match="not the same"):
        devices_of(with_slots(8, 4), None, 2)
    with pytest.raises(HostError, match="8 devices are asked for") as caught:
        devices_of(with_slots(8, 4), 8)
    assert caught.value.where == "node2"
