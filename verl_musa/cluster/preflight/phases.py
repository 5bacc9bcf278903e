"""The three phases: facts, calls, files. One ssh for each host and phase, all hosts at once, each with a bound."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight import mesh as meshes
from verl_musa.cluster.preflight.check_path import paths_of
from verl_musa.cluster.preflight.mesh import Mesh
from verl_musa.cluster.preflight.program import (
    ARGV,
    DATA,
    FACTS,
    MESH,
    asked_of_site,
    probe_program,
    read_answer,
)
from verl_musa.cluster.preflight.view import Clock, Part
from verl_musa.cluster.ssh import Done, Remote, run_all
from verl_musa.recipe import Resolved, Site

Say = Callable[[str], None]
PULL = -1
"""In the place of a port: the call that asks for a transfer."""

START_S = 5.0
"""Of the first phase's time, what is left to ssh and the start of Python: a part that hangs must not cost the others' answer."""


SLOWER = 1.5
"""How much slower than in phase 1 a host may get going in the later ones."""

LONGEST_START_S = 10.0
"""What phases 2 and 3 wait for a slow host at most; one that took longer in phase 1 is slow in them, too, and is then reported."""


@dataclass(frozen=True)
class Bounds:
    """Seconds that a host may take.

    Attributes:
        facts: phase 1, ssh included.
        calls: phase 2: the time in which calls are repeated.
        files: phase 3: the time in which a file must show up on all hosts.
        start: what ssh and Python may take to get going in phases 2 and 3.
        payload: bytes that each host sends to its two neighbours in the list.
    """

    facts: float = 22.0
    calls: float = 6.0
    files: float = 8.0
    start: float = 3.0
    payload: int = 4 * 2**20


@dataclass(frozen=True)
class Facts:
    """What phase 1 found: what became of each ssh, the parts of each probe that answered, and each host's clock.

    ``start``: seconds that ssh and Python took to get going on the slowest host, in which the others have to wait for it.
    """

    done: Mapping[str, Done]
    parts: Mapping[str, Mapping[str, Part]]
    clocks: Mapping[str, tuple[float, float]]
    start: float = 0.0


@dataclass(frozen=True)
class Asking:
    """Who is asked, how and for how long; ``say`` is told in a few words what is being done."""

    site: Site
    hosts: Sequence[Host]
    remote: Remote
    bounds: Bounds
    say: Say


def gather_facts(asking: Asking, python: str) -> Facts:
    """Phase 1. ``clocks`` holds seconds that a host is ahead of this machine, and how far from the truth that can be."""
    site, hosts, bounds = asking.site, asking.hosts, asking.bounds
    asking.say(f"asking {len(hosts)} hosts")
    names = sorted({name for host in hosts for name in (host.name, host.address)})
    folders = {} if site.shared is None else {"shared": site.shared}
    parameters = {
        "seconds": bounds.facts - START_S,
        "python": python,
        "asked": asked_of_site(),
        "names": names,
        "folders": folders,
    }
    program = probe_program(FACTS, parameters)
    ended: dict[str, float] = {}
    done = run_all(
        asking.remote,
        hosts,
        ARGV,
        stdin=program,
        timeout_s=bounds.facts,
        seen=lambda one: ended.update({one.host: time.time()}),
    )
    parts, clocks, start = {}, {}, 0.0
    for name, one in done.items():
        answer = read_answer(one.stdout)
        if answer is None:
            continue
        start = max(start, one.seconds - (answer["ended"] - answer["began"]))
        parts[name] = answer["parts"]
        # The host's first and last look at its clock both lie between our first and last look at ours.
        begin, end = ended[name] - one.seconds, ended[name]
        lowest, highest = answer["ended"] - end, answer["began"] - begin
        clocks[name] = ((lowest + highest) / 2, abs(highest - lowest) / 2)
    return Facts(done, parts, clocks, min(start, LONGEST_START_S))


def start_of(bounds: Bounds, facts: Facts) -> float:
    """What ssh and Python may take in the later phases: a host that starts late must not look as if a firewall rejected its calls."""
    return max(bounds.start, facts.start * SLOWER)


def make_calls(asking: Asking, facts: Facts, addresses: Mapping[str, str]) -> Mesh:
    """Phase 2: every host listens and calls every other one."""
    site, bounds = asking.site, asking.bounds
    calling = [host for host in asking.hosts if host.name in addresses and host.name in facts.parts]
    if len(calling) < 2:  # noqa: PLR2004  (nobody to call)
        return Mesh()
    asking.say(f"{len(calling)} hosts call each other")
    nets = {host.name: facts.parts[host.name].get("net", {}).get("value") for host in calling}
    known = [net for net in nets.values() if net is not None]
    taken = {one["port"] for net in known for one in net["listeners"]}
    ports = _free_ports(
        site, calling, nets, meshes.ephemeral_ports([net["ephemeral"] for net in known], taken)
    )
    nonce = secrets.token_hex(8)
    span = start_of(bounds, facts) + bounds.calls
    until = time.time() + span
    beside = neighbours([host.name for host in calling])

    def stdin(host: Host) -> bytes:
        others = [other for other in calling if other.name != host.name]
        asked = [name for name in beside[host.name] if ports[name]]
        return probe_program(MESH, {
            "seconds": span + 2,
            "until": until + facts.clocks[host.name][0],
            "nonce": nonce,
            "me": host.name,
            "address": addresses[host.name],
            "listen": ports[host.name],
            "dial": [{"host": one.name, "address": addresses[one.name], "ports": ports[one.name]} for one in others],
            "expect": {one.name: [*ports[host.name], *([PULL] if host.name in beside[one.name] else [])] for one in others},
            "pulls": [{"host": name, "address": addresses[name], "port": ports[name][-1]} for name in asked],
            "payload": bounds.payload,
        })  # fmt: skip

    done = run_all(asking.remote, calling, ARGV, stdin=stdin, timeout_s=span + 8)
    values, errors = _values(done, "mesh")
    return Mesh(values, errors)


def neighbours(names: Sequence[str]) -> dict[str, list[str]]:
    """Whom each host asks for a larger transfer: the next and the last one of the list, taken as a ring; so a slow one is seen by two."""
    count = len(names)
    return {
        name: list(dict.fromkeys([names[(index + 1) % count], names[index - 1]]))
        for index, name in enumerate(names)
    }


def _free_ports(
    site: Site, hosts: Sequence[Host], nets: Mapping[str, Any], ephemeral: Sequence[int]
) -> dict[str, list[int]]:
    """The ports that each host listens on: those that somebody else holds there are left out (ray.ports names them)."""
    found = {}
    for host in hosts:
        taken = {one["port"] for one in (nets[host.name] or {"listeners": ()})["listeners"]}
        found[host.name] = [port for port in meshes.ports_of(site.ray, host, ephemeral) if port not in taken]
    return found


def look_at_files(
    asking: Asking, resolved: Resolved | None, facts: Facts
) -> tuple[dict[str, Part], dict[str, str]]:
    """Phase 3: the paths of the recipe, and the shared folder."""
    paths = {} if resolved is None else paths_of(resolved)
    site, bounds = asking.site, asking.bounds
    looking = [host for host in asking.hosts if host.name in facts.parts]
    if not looking or (not paths and site.shared is None):
        return {}, {}
    asking.say(f"comparing {len(paths)} paths and the shared folder on {len(looking)} hosts")
    span = start_of(bounds, facts) + bounds.files
    nonce, until = secrets.token_hex(8), time.time() + span

    def stdin(host: Host) -> bytes:
        return probe_program(DATA, {
            "seconds": span + 4,
            "until": until + facts.clocks[host.name][0],
            "nonce": nonce,
            "me": host.name,
            "everybody": [one.name for one in looking],
            "shared": site.shared,
            "paths": paths,
        })  # fmt: skip

    return _values(run_all(asking.remote, looking, ARGV, stdin=stdin, timeout_s=span + 8), "data")


def _values(done: Mapping[str, Done], part: str) -> tuple[dict[str, Any], dict[str, str]]:
    values, errors = {}, {}
    for name, one in done.items():
        answer = read_answer(one.stdout)
        said = (
            {"error": one.why()}
            if answer is None
            else answer["parts"].get(part, {"error": "it said nothing"})
        )
        if "value" in said:
            values[name] = said["value"]
        else:
            errors[name] = str(said["error"])
    return values, errors


def clocks_to_head(hosts: Sequence[Host], facts: Facts, mesh: Mesh) -> dict[str, Clock]:
    """Each host's clock against the head's: by the quickest call between the two, else by the time that ssh took."""
    head = hosts[0].name
    found = {}
    for host in hosts:
        if host.name not in facts.clocks or head not in facts.clocks:
            continue
        own, heads = facts.clocks[host.name], facts.clocks[head]
        measured = (own[0] - heads[0], own[1] + heads[1])
        called = None if host.name == head else mesh.clock_of(host.name, head)
        ahead, off = min((one for one in (measured, called) if one is not None), key=lambda one: one[1])
        if host.name == head:
            ahead, off = 0.0, 0.0
        offset = facts.parts[host.name].get("host", {}).get("value", {}).get("utc_offset_s")
        found[host.name] = Clock(ahead, off, offset)
    return found
