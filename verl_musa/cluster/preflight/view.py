"""Everything that the probes of all hosts said, as the checks look at it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_musa.checks import Check, Finding, Result, Status, run_checks
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.mesh import Mesh
from verl_musa.cluster.ssh import Done
from verl_musa.errors import VerlMusaError
from verl_musa.recipe import Resolved, Site

Part = Mapping[str, Any]


class MissingFactError(Exception):
    """A host did not say what a check needs; the text says why."""


@dataclass(frozen=True)
class Clock:
    """A host's clock.

    Attributes:
        ahead: seconds that it is ahead of the head's.
        within: how far from the truth that can be, in seconds.
        utc_offset: its offset from UTC in seconds.
    """

    ahead: float
    within: float
    utc_offset: int | None


@dataclass(frozen=True, eq=False)
class View:
    """What is known of all hosts. Equal only to itself, so that what is derived from one can be kept.

    Attributes:
        site: the site.
        hosts: the hosts, the head first.
        resolved: the recipe; None where none was named.
        done: host -> what became of its first ssh.
        parts: host -> part of the probe -> ``{"value"}`` or ``{"error"}``, for hosts that answered.
        addresses: host -> its address in the training network, where it has one.
        lacking: host -> why it has none.
        clocks: host -> its clock.
        mesh: what became of the hosts' calls to each other.
        data: host -> what was found of the files.
        data_errors: host -> why nothing was.
        run_dir: the run directory; None where no run is about to start.
        run_id: a run whose own Ray may be up already; None: any Ray is somebody else's.
    """

    site: Site
    hosts: tuple[Host, ...]
    resolved: Resolved | None
    done: Mapping[str, Done]
    parts: Mapping[str, Mapping[str, Part]]
    addresses: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    mesh: Mesh = field(default_factory=Mesh)
    data: Mapping[str, Part] = field(default_factory=dict)
    data_errors: Mapping[str, str] = field(default_factory=dict)
    run_dir: Path | None = None
    run_id: str | None = None

    @property
    def head(self) -> Host:
        """The host that the head runs on."""
        return self.hosts[0]

    @property
    def answering(self) -> tuple[Host, ...]:
        """The hosts whose probe answered."""
        return tuple(host for host in self.hosts if host.name in self.parts)

    def part(self, host: Host, name: str) -> Part:
        """What one part of the probe said.

        Raises:
            MissingFactError: nothing.
        """
        said = self.parts.get(host.name, {}).get(name, {"error": "its probe did not run"})
        if "value" not in said:
            raise MissingFactError(f"not known: {said.get('error')}")
        value: Part = said["value"]
        return value

    def others(self, name: str) -> Iterator[tuple[Host, Part]]:
        """What that part said on each host where it said something."""
        for host in self.answering:
            said = self.parts[host.name].get(name, {})
            if "value" in said:
                yield host, said["value"]

    def variables(self) -> Mapping[str, str]:
        """The environment variables of the recipe's job."""
        found: Mapping[str, str] = (
            {} if self.resolved is None else self.resolved.runtime_env.get("env_vars") or {}
        )
        return found

    def expects(self, ray_address: str) -> bool:
        """Whether a Ray address is that of this site's head."""
        address = self.addresses.get(self.head.name)
        if address is None:
            return False
        shown = f"[{address}]" if ":" in address else address
        return ray_address in {f"{shown}:{self.site.ray.port}", f"http://{shown}:{self.site.ray.dashboard}"}

    @property
    def simulated(self) -> bool:
        """Whether the recipe's devices are simulated."""
        return self.resolved is not None and self.resolved.recipe.device.simulated

    def interface(self, host: Host) -> tuple[str, Mapping[str, Any]]:
        """Name and facts of the interface that has the host's training address.

        Raises:
            MissingFactError: none has it.
        """
        address = self.addresses.get(host.name)
        if address is None:
            raise MissingFactError(self.lacking.get(host.name, "its training address is not known"))
        for name, one in self.part(host, "net")["interfaces"].items():
            if any(entry["address"] == address for entry in one["addresses"]):
                return name, one
        raise MissingFactError(f"{address} is on none of its interfaces")

    def in_management(self, host: Host) -> bool:
        """Whether the host's training address lies in the management network, which is another one."""
        networks, address = self.site.networks, self.addresses.get(host.name)
        if networks.management is None or networks.management == networks.training or address is None:
            return False
        if in_network(address, networks.management):
            return True
        try:
            return self.interface(host)[0] == networks.management
        except MissingFactError:
            return False

    def sound(self, host: Host) -> bool:
        """Whether the training address is on the host and not the management's: else nothing is to be learnt by using it."""
        try:
            self.interface(host)
        except MissingFactError:
            return False
        return not self.in_management(host)


@dataclass(frozen=True)
class HostCheck:
    """One check, made for each host that answered.

    Attributes:
        name: its id.
        looks_at: what it looks at, for people.
        function: a pure function of what is known; None means that there is nothing to look at.
    """

    name: str
    looks_at: str
    function: Callable[[View, Host], Finding | None]


def check_hosts(checks: tuple[HostCheck, ...], view: View, hosts: tuple[Host, ...]) -> list[Result]:
    """The results of all checks for ``hosts``, check by check."""
    return [result for check in checks for host in hosts if (result := _one(check, view, host)) is not None]


def _one(check: HostCheck, view: View, host: Host) -> Result | None:
    try:
        found = check.function(view, host)
    except MissingFactError as error:
        return Result(check=check.name, looks_at=check.looks_at, status=Status.UNKNOWN, evidence=str(error),
                      fix="look at the host by hand, then run preflight again", host=host.name)  # fmt: skip
    except VerlMusaError:
        raise
    except Exception as error:  # noqa: BLE001  (the runner of checks says it in its own words)
        found = _broken(check, error)
    if found is None:
        return None
    finding = found
    result = run_checks([Check(check.name, check.looks_at, lambda _: finding)], None)[0]
    return replace(result, host=host.name)


def _broken(check: HostCheck, error: Exception) -> Finding:
    return Finding(
        Status.UNKNOWN,
        f"the check itself failed: {type(error).__name__}: {error}",
        f"please report this ({check.name})",
    )


def in_network(address: str, network: str) -> bool:
    """Whether ``address`` lies in ``network``; false where that is the name of an interface."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Whether ``address`` is one that only its own host reaches."""
    return ipaddress.ip_address(address).is_loopback


def training_address(
    site: Site, host: Host, parts: Mapping[str, Part], wanted: str | None
) -> tuple[str | None, str]:
    """The host's address in the training network, or None and why.

    Asked in this order: the site's entry of the host; ``networks.training``; the interface ``wanted`` by the recipe; the address that
    ssh came in by; the address that the site gives.
    """
    if host.training is not None:
        return str(ipaddress.ip_address(host.training)), ""
    net = parts.get("net", {}).get("value")
    if net is None:
        return None, "its network is not known"
    network = site.networks.training or wanted
    if network is not None:
        return _address_in(net["interfaces"], network)
    for candidate in (
        net["connected_by"],
        host.address,
        *(net["names"].get(host.address, {}).get("value") or ()),
    ):
        try:
            return str(ipaddress.ip_address(candidate)), ""
        except ValueError:
            continue
    return None, "no training network in the site"


def _address_in(interfaces: Mapping[str, Any], network: str) -> tuple[str | None, str]:
    by_name = interfaces.get(network)
    if by_name is not None:
        usable = [
            entry["address"]
            for entry in by_name["addresses"]
            if not ipaddress.ip_address(entry["address"]).is_link_local
        ]
        return (usable[0], "") if usable else (None, f"interface {network} has no address")
    try:
        ipaddress.ip_network(network, strict=False)
    except ValueError:
        return None, f"no interface {network}; it has {', '.join(sorted(interfaces))}"
    fitting = [
        entry["address"]
        for one in interfaces.values()
        for entry in one["addresses"]
        if in_network(entry["address"], network)
    ]
    if fitting:
        return fitting[0], ""
    has = [
        f"{name} {entry['address']}"
        for name, one in interfaces.items()
        for entry in one["addresses"]
        if not one["loopback"]
    ]
    return None, f"no address in {network}; it has {', '.join(has) or 'none'}"
