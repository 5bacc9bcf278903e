"""What is looked at once Ray is up, on hosts that are really there: three with a Ray of their own, and what goes wrong between them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.hosts import SIMULATOR, Hosts, NoHostsError, Shape, faults, up, with_stack
from verl_musa.checks import Result, Status
from verl_musa.cluster.bring_up import Cluster, bring_up, take_down
from verl_musa.cluster.fleet import Fleet, members
from verl_musa.cluster.hosts import hosts_of
from verl_musa.cluster.jobs_api import JobsApi
from verl_musa.cluster.preflight.afterwards import Wish, look_afterwards
from verl_musa.cluster.ssh import Ssh
from verl_musa.recipe import load_site

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

BOUND_S = 90.0
VICTIM = 2
RUNTIME_ENV = {
    "env_vars": {
        "VERL_PLATFORM": "musa",
        "MUSA_SIM_DEVICES": "1",
        "RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
}


@dataclass(frozen=True)
class Place:
    """A Ray on three hosts."""

    hosts: Hosts
    api: JobsApi
    wish: Wish

    def look(self) -> tuple[list[Result], float]:
        start = time.monotonic()
        return look_afterwards(self.api, self.wish), time.monotonic() - start


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(
                up(with_stack(Shape(count=3), SIMULATOR), kind=os.environ.get("VERL_MUSA_HOSTS_KIND"))
            )
        except NoHostsError as error:
            pytest.skip(f"no hosts were brought up: {error}")
        site = load_site(hosts.site)
        fleet = Fleet(Ssh(site), site.python)
        found = members(fleet, hosts_of(site), site, time.time)
        cluster = Cluster(
            cluster="afterwards", owner="tests", members=found, num_gpus=1, num_cpus=4, ports=site.ray
        )
        stack.callback(take_down, cluster.cluster, cluster.hosts, fleet, lambda _: None)
        bring_up(cluster, fleet, lambda _: None, health_s=0)
        wish = Wish({one.name: one.address for one in found}, devices=1, runtime_env=RUNTIME_ENV, device="musa", simulated=True,
                    python=site.python or "python3", seconds=BOUND_S)  # fmt: skip
        yield Place(hosts, JobsApi(cluster.url), wish)


def _told(results: list[Result]) -> str:
    return "\n".join(f"{one.status} {one.check} {one.host}: {one.evidence}" for one in results)


def test_all_is_well_where_nothing_is_wrong(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    results, seconds = place.look()
    with capsys.disabled():
        print(f"\n{_told(results)}\n{seconds:.1f} s")  # noqa: T201  (the figures are worth keeping)
    assert not [one for one in results if one.status is Status.FAIL], _told(results)
    assert seconds < BOUND_S + 10
    names = {host.name for host in place.hosts.hosts}
    for check in ("ray.nodes", "ray.health", "ray.same", "ray.object", "net.pairs", "net.allreduce"):
        assert {one.host for one in results if one.check == check} == names, check


def test_a_slow_host_is_named(place: Place) -> None:
    victim = place.hosts[VICTIM]
    with faults.slow_link(victim, "20mbit"):
        results, seconds = place.look()
    slow = [one for one in results if one.check == "net.pairs" and one.status is not Status.OK]
    assert [one.host for one in slow] == [victim.name], _told(results)
    assert seconds < BOUND_S + 10


def test_large_objects_that_do_not_pass_are_named(place: Place) -> None:
    victim = place.hosts[VICTIM]
    with faults.large_packets_lost(victim):
        results, seconds = place.look()
    named = {
        one.host
        for one in results
        if one.status is Status.FAIL and one.check in {"ray.job", "ray.object", "net.pairs"}
    }
    assert named == {victim.name}, _told(results)
    assert seconds < BOUND_S + 10


def test_a_host_that_is_gone_is_named(place: Place) -> None:
    victim = place.hosts[VICTIM]
    with faults.killed_host(place.hosts, victim):
        results, seconds = place.look()
    dead = [one for one in results if one.check == "ray.health" and one.status is Status.FAIL]
    assert [one.host for one in dead] == [victim.name], _told(results)
    assert "DEAD" in dead[0].evidence
    job = next(one for one in results if one.check == "ray.job")
    assert job.status is Status.FAIL
    assert seconds < BOUND_S + 10
    assert Path(place.hosts.site).exists()
