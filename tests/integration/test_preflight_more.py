"""Preflight on hosts with stand-in cards, through the command line as a user has it; and faults of paths, names and installations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci.hosts import Host, Hosts, NoHostsError, Shape, cards, faults, up, with_stack
from ci.hosts.model import SHARED, SITE_INSIDE
from ci.hosts.table import bound, note

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
CARDS = cards.Cards()
VICTIM = 1


@dataclass(frozen=True)
class Place:
    """Hosts with cards, and the site that names them."""

    hosts: Hosts
    site: Path

    def preflight(self, login: Host | None = None) -> tuple[list[dict[str, Any]], float]:
        """What `verl-musa preflight --json` says on this machine or on a host, and in how many seconds."""
        site = self.site if login is None else SITE_INSIDE
        command = self.hosts.verl_musa("preflight", "--json", "--site", str(site), login=login)
        start = time.monotonic()
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.stdout.startswith("{"), done.stderr
        report = json.loads(done.stdout)
        assert done.returncode == (2 if report["counts"]["FAIL"] else 3 if report["counts"]["UNKNOWN"] else 0)
        return report["checks"], time.monotonic() - start


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(
                up(with_stack(Shape(count=3)), kind=os.environ.get("VERL_MUSA_HOSTS_KIND"))
            )
        except NoHostsError as error:
            pytest.skip(f"no hosts were brought up: {error}")
        stack.enter_context(cards.stand_in_cards(hosts, CARDS))
        content = yaml.safe_load(hosts.site.read_text(encoding="utf-8"))
        for host in content["hosts"]:
            host["slots"] = len(CARDS.used_mib)
        content["limits"]["memlock_gib"] = 0.001
        site = tmp_path_factory.mktemp("site") / "site.yaml"
        site.write_text(yaml.safe_dump(content), encoding="utf-8")
        yield Place(hosts, site)


def test_cards_are_seen_and_nothing_is_wrong(place: Place) -> None:
    checks, seconds = place.preflight()
    odd = [one for one in checks if one["status"] != "OK"]
    assert not odd
    assert seconds < bound()
    counted = [one["evidence"] for one in checks if one["check"] == "device.count"]
    assert counted == ["4 by mthreads-gmi, 4 wanted"] * 3


def test_a_user_may_sit_on_a_host(place: Place) -> None:
    checks, _ = place.preflight(place.hosts.head)
    assert {one["host"] for one in checks} == {"host1", "host2", "host3"}
    assert not [one for one in checks if one["status"] == "FAIL"]


@dataclass(frozen=True)
class Fault:
    """A fault, the check that must find it on host2, and words of its evidence."""

    make: Callable[[Hosts], AbstractContextManager[object]]
    check: str
    says: str
    status: str = "FAIL"
    host: int = VICTIM


def other(**changed: Any) -> Callable[[Hosts], AbstractContextManager[object]]:
    return lambda hosts: cards.other_cards(hosts[VICTIM], CARDS, replace(CARDS, **changed))


FAULTS = {
    "one card less": Fault(lambda h: cards.other_cards(h[VICTIM], CARDS, cards.fewer_cards(CARDS)), "device.count", "3 by mthreads-gmi, 4 wanted"),
    "memory of a card in use": Fault(lambda h: cards.other_cards(h[VICTIM], CARDS, cards.used_card(CARDS, 60000)), "device.memory", "60000"),
    "foreign process on a card": Fault(lambda h: cards.held_card(h[VICTIM]), "device.holders", "1 processes have them open", "WARN"),
    "other driver": Fault(other(driver="2.7.0"), "version.driver", "2.7.0"),
    "other MCCL": Fault(other(mccl=(2, 10, 0)), "version.mccl", "2.10.0"),
    "other MUSA SDK": Fault(other(sdk="4.2.0"), "version.sdk", "4.2.0"),
    "other torch_musa": Fault(lambda h: faults.other_version(h[VICTIM], "musa-sim", "0.0.9", python=sys.executable), "version.torch-musa", "0.0.9"),
    "other series of patches": Fault(lambda h: faults.changed_file(h[VICTIM], str(ROOT / "patches" / "series.yaml"), "# edited\n"), "version.patches", "on most"),
    "unreadable shared folder": Fault(lambda h: faults.unreadable_path(h[VICTIM], SHARED), "path.shared", "ermission denied"),
    "low memlock": Fault(lambda h: faults.low_ulimit(h[VICTIM], "memlock", 65536), "host.memlock", "0.0 GiB"),
    "management closed between hosts": Fault(faults.management_closed, "net.reach", "", "OK"),
    "head's own name is loopback": Fault(faults.head_is_loopback, "net.names", "127.0.1.1", "WARN", host=0),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_its_host_within_30_s(place: Place, name: str) -> None:
    fault = FAULTS[name]
    victim = place.hosts[fault.host].name
    with fault.make(place.hosts):
        checks, seconds = place.preflight()
    found = [
        one
        for one in checks
        if (one["check"], one["host"], one["status"]) == (fault.check, victim, fault.status)
    ]
    odd = [one for one in checks if one["status"] != "OK"]
    assert found, odd
    assert fault.says in found[0]["evidence"], odd
    assert seconds < bound()
    if fault.status != "OK":
        assert found[0]["fix"], found
        note(name, fault.check, victim, seconds, found[0]["evidence"])
