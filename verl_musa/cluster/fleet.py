"""The agents of all hosts of a cluster, asked over ssh, and who the hosts are in the training network."""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_musa.cluster.hosts import Host
from verl_musa.cluster.ssh import Done, Remote, run_all
from verl_musa.errors import HostError
from verl_musa.recipe.site import Site, is_address

AGENT = "verl_musa.cluster.agent"
MARK = "verl-musa-agent: "  # of verl_musa.cluster.agent, which this side does not import
QUICK_S = 60.0
"""Bound of a call that starts and ends nothing. A loaded host takes seconds to start a Python."""


@dataclass(frozen=True)
class Answered:
    """What an agent said.

    Attributes:
        host: the host's name.
        answer: its answer; None where none came.
        why: what went wrong, on one line; empty where nothing did.
        unreachable: whether ssh itself failed or ran out of time.
        error: the agent's own error, with ``message``, ``found``, ``expected`` and ``fix``.
    """

    host: str
    answer: Mapping[str, Any] | None
    why: str = ""
    unreachable: bool = False
    error: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether the agent did what it was asked."""
        return self.answer is not None and self.error is None


@dataclass(frozen=True)
class Member:
    """A host as part of a cluster.

    Attributes:
        host: the host.
        address: its address in the training network, the one that Ray registers.
        interface: the interface that has this address.
        management: address that people and the launching machine use; the same where there is one network.
        cpus: its logical CPUs.
        hostname: what it calls itself.
        ahead: seconds by which its clock is ahead of the launching machine's, to within the call's duration.
        utc_offset: of its clock, in seconds.
    """

    host: Host
    address: str
    interface: str
    management: str
    cpus: int
    hostname: str
    ahead: float = 0.0
    utc_offset: int | None = None

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name


class Fleet:
    """Calls agents.

    Args:
        remote: how hosts are reached.
        python: the Python with verl-musa on them; None: the path of the one that runs here.
    """

    def __init__(self, remote: Remote, python: str | None = None) -> None:
        self._remote = remote
        self._python = python or sys.executable

    def call(self, host: Host, verb: str, request: Mapping[str, Any], *, timeout_s: float = QUICK_S) -> Answered:  # fmt: skip
        """Ask one host's agent; never raises for what happens there."""
        return self.call_all([host], verb, lambda _: request, timeout_s=timeout_s)[host.name]

    def call_all(
        self,
        hosts: Iterable[Host],
        verb: str,
        request: Callable[[Host], Mapping[str, Any]],
        *,
        timeout_s: float = QUICK_S,
        seen: Callable[[Answered], None] = lambda _: None,
    ) -> dict[str, Answered]:
        """Ask all of them at once; ``seen`` gets each answer as it comes."""
        done = run_all(
            self._remote,
            hosts,
            [self._python, "-m", AGENT, verb],
            stdin=lambda host: json.dumps(request(host)).encode(),
            timeout_s=timeout_s,
            seen=lambda one: seen(_answered(one)),
        )
        return {name: _answered(one) for name, one in done.items()}


def _answered(done: Done) -> Answered:
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    text = next((line.partition(MARK)[2] for line in reversed(lines) if line.startswith(MARK)), None)
    try:
        answer = None if text is None else json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        lost = done.unreachable or done.code is None
        return Answered(done.host, None, done.why() if not done.ok else "its agent gave no answer", lost)
    error = answer.get("error")
    return Answered(done.host, answer, str(error.get("message")) if error else "", error=error)


def failure(answered: Answered, doing: str) -> HostError:
    """The error of a host that did not do what it was asked."""
    if answered.error is not None:
        told = {name: answered.error.get(name) for name in ("found", "expected", "fix")}
        return HostError(str(answered.error["message"]), where=answered.host, **told)
    return HostError(
        f"{doing}: the host does not answer"
        if answered.unreachable
        else f"{doing}: its agent does not answer",
        where=answered.host,
        found=answered.why,
        expected="an answer of verl_musa.cluster.agent",
        fix="check that ssh works without a password (verl-musa preflight)"
        if answered.unreachable
        else "check `container` and `python` in site.yaml: verl-musa must be installed there",
    )


def members(fleet: Fleet, hosts: Sequence[Host], site: Site, now: Callable[[], float]) -> list[Member]:
    """Ask the hosts who they are in the networks.

    Raises:
        HostError: a host does not answer, or has no address in the training network; names all of them.
    """
    found, wrong = try_members(fleet, hosts, site, now)
    if wrong:
        first = next(iter(wrong.values()))
        more = [f"{name}: {error.message}" for name, error in list(wrong.items())[1:6]]
        raise HostError(first.message, where=first.where, expected=first.expected, fix=first.fix,
                        found="; ".join(filter(None, [first.found, *more])))  # fmt: skip
    return found


def try_members(
    fleet: Fleet, hosts: Sequence[Host], site: Site, now: Callable[[], float]
) -> tuple[list[Member], dict[str, HostError]]:
    """Those of the hosts that answer as they should, and what is wrong with the others."""
    asked = now()
    arrived: dict[str, float] = {}

    def seen(one: Answered) -> None:
        arrived[one.host] = now()

    answers = fleet.call_all(hosts, "facts", lambda host: {"name": host.address}, seen=seen)
    found, wrong = [], {}
    for host in hosts:
        answered = answers[host.name]
        if not answered.ok or answered.answer is None:
            wrong[host.name] = failure(answered, "who it is")
            continue
        middle = (asked + arrived[host.name]) / 2
        try:
            found.append(_member(host, answered.answer, site, middle))
        except HostError as error:
            wrong[host.name] = error
    return found, wrong


def _member(host: Host, facts: Mapping[str, Any], site: Site, middle: float) -> Member:
    addresses = {str(name): [str(a) for a in given] for name, given in facts["addresses"].items()}
    training = host.training or _in_network(site.networks.training, addresses)
    if training is None and site.networks.training is None:
        known = [*facts["connected_by"], host.address, *facts["named"]]
        training = next((str(one) for one in known if is_address(str(one))), None)
    interface = next((name for name, given in addresses.items() if training in given), None)
    if training is not None and interface is None and ipaddress.ip_address(training).is_loopback:
        interface = "lo"  # all of 127.0.0.0/8 is this host's although only one address is listed
    if training is None or interface is None:
        raise HostError(
            "the host has no address in the training network",
            where=host.name,
            found="; ".join(f"{name} {', '.join(given)}" for name, given in addresses.items() if given),
            expected=f"the address {host.training}" if host.training
            else f"one in {site.networks.training}" if site.networks.training
            else "networks.training in site.yaml, or an IP address of the host there",
            fix="correct networks.training or the host's `training` in site.yaml",
        )  # fmt: skip
    management = _in_network(site.networks.management, addresses) or training
    offset = facts.get("utc_offset_s")
    return Member(
        host=host,
        address=training,
        interface=interface,
        management=management,
        cpus=int(facts["cpus"]),
        hostname=str(facts["hostname"]),
        ahead=round(float(facts["time"]) - middle, 3),
        utc_offset=None if offset is None else int(offset),
    )


def _in_network(network: str | None, addresses: Mapping[str, Sequence[str]]) -> str | None:
    """The first address in a network (192.0.2.0/24), or of the interface that has this name."""
    if network is None:
        return None
    if network in addresses:
        usable = [text for text in addresses[network] if not ipaddress.ip_address(text).is_link_local]
        return usable[0] if usable else None
    try:
        wanted = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return None
    every = [text for given in addresses.values() for text in given]
    inside = [text for text in every if ipaddress.ip_address(text) in wanted]
    return inside[0] if inside else None
