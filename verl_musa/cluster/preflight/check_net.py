"""Checks of the network: the training address and its interface, names, proxies, and who reaches whom."""

from __future__ import annotations

import ipaddress
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verl_musa.checks import Finding, fail, ok, warn
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.mesh import names_of
from verl_musa.cluster.preflight.view import HostCheck, MissingFactError, View, in_network, is_loopback

EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Gloo and TensorPipe take whole names."""

PREFIX = ("MCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""MCCL takes starts of names, ``=`` before whole ones and ``^`` before those to leave out."""

ADAPTERS = "MCCL_IB_HCA"
GID = "MCCL_IB_GID_INDEX"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
SLOW_SHARE = 0.1
SLOW_BYTES = 12.5e6
"""Bytes a second below which any network between training hosts is broken: 100 Mbit/s."""

JUMBO_FRAME = 9000
"""Bytes of the largest packet that networks between training hosts carry."""

SLOW_MS = 5.0
"""Milliseconds to open a connection that are strange inside one site, if most pairs take a tenth of it."""


def _variable(view: View, host: Host, name: str) -> str | None:
    """What a process of the job sees: the recipe's, else what the host's own environment holds (such as an image's)."""
    value = view.variables().get(name)
    return value if value is not None else view.part(host, "host")["environment"].get(name)


def _address(view: View, host: Host) -> Finding:
    view.part(host, "net")
    address = view.addresses.get(host.name)
    fix = "correct networks.training of the site, or the host's own `training`"
    if address is None:
        return fail(view.lacking.get(host.name, "no training address"), fix)
    try:
        name, one = view.interface(host)
    except MissingFactError as error:
        has = [f"{name} {entry['address']}" for name, one in view.part(host, "net")["interfaces"].items()
               for entry in one["addresses"] if not one["loopback"]]  # fmt: skip
        return fail(f"{error}; it has {', '.join(has) or 'none'}", fix)
    if one["loopback"] and len(view.hosts) > 1:
        return fail(f"{address} on {name}: no other host reaches it", fix)
    return ok(f"{address} on {name}")


def _placed(view: View, host: Host) -> bool:
    """Whether the training address is on the host; where it is not, net.address or net.management says so."""
    if host.name not in view.parts or "value" not in view.parts[host.name].get("net", {}):
        return True  # the check then says that it is not known
    return view.sound(host)


def _interface(view: View, host: Host) -> Finding | None:
    if not _placed(view, host):
        return None
    name, one = view.interface(host)
    if not one["up"] or one["state"] in {"down", "lowerlayerdown"}:
        return fail(
            f"{name} is {one['state'] if one['up'] else 'switched off'}",
            f"ip link set {name} up, and look at cable and switch",
        )
    recipe = None if view.resolved is None else view.resolved.recipe.network
    wanted = None if recipe is None else recipe.interface
    if wanted and not wanted.startswith("<site.") and wanted != name:
        return fail(
            f"the training address is on {name}, the recipe binds to {wanted}",
            "correct training_interface or networks.training of the site",
        )
    return ok(f"{name} is up" + (f", {one['speed']} Mbit/s" if one["speed"] else ""))


def _management(view: View, host: Host) -> Finding | None:
    network, address = view.site.networks.management, view.addresses.get(host.name)
    if network is None or address is None:
        return None
    if view.in_management(host):
        return fail(
            f"{address} is in the management network {network}",
            "give the training network: networks.training, or the host's own `training`",
        )
    return ok(f"{address} is not in {network}")


def _subnet(view: View, host: Host) -> Finding | None:
    if host.head or not _placed(view, host) or not _placed(view, view.head):
        return None
    own, heads = (_network_of(view, one) for one in (host, view.head))
    if own == heads:
        return ok(own)
    training = view.site.networks.training
    if training is not None and all(
        in_network(view.addresses[one.name], training) for one in (host, view.head)
    ):
        return ok(f"{own}, {view.head.name} {heads}: both in {training}")
    return fail(
        f"{own}, but {view.head.name} is in {heads}",
        "put the training addresses into one network, or name the one that holds both in networks.training",
    )


def _network_of(view: View, host: Host) -> str:
    _, one = view.interface(host)
    address = view.addresses[host.name]
    prefix = next(entry["prefix"] for entry in one["addresses"] if entry["address"] == address)
    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))


def _mtu(view: View, host: Host) -> Finding | None:
    if not _placed(view, host):
        return None
    name, one = view.interface(host)
    wanted, source = view.site.limits.mtu, "limits.mtu"
    if wanted is None:
        sizes = {}
        for other in view.answering:
            try:
                sizes[other.name] = view.interface(other)[1]["mtu"]
            except MissingFactError:
                continue
        wanted, source = (
            statistics.mode([sizes.get(view.head.name, one["mtu"]), *sizes.values()]),
            "most hosts",
        )
    if one["mtu"] != wanted:
        return fail(
            f"{name} {one['mtu']}, {source} {wanted}",
            f"ip link set {name} mtu {wanted}, on the host and in its switch",
        )
    return ok(f"{name} {one['mtu']}")


def _route(view: View, host: Host) -> Finding | None:
    called = _mesh(view, host)
    if called is None or not _placed(view, host):
        return None
    routes: Mapping[str, Mapping[str, str] | None] = called["routes"]
    own = view.addresses[host.name]
    wrong = {peer: said for peer, said in routes.items() if said is None or said.get("source") != own}
    if wrong:
        peer, said = next(iter(wrong.items()))
        how = "no answer" if said is None else said.get("error") or f"leaves from {said['source']}"
        return fail(
            f"to {', '.join(list(wrong)[:4])} ({view.addresses[peer]}): {how}, not from {own}",
            "correct the routes: ip route get ADDRESS",
        )
    return ok(f"to {len(routes)} hosts from {own}") if routes else None


def _ifname(view: View, host: Host) -> Finding | None:
    interfaces = view.part(host, "net")["interfaces"]
    seen = []
    for variable in (*PREFIX, *EXACT):
        text = _variable(view, host, variable)
        if not text:
            continue
        chosen = _chosen(text, interfaces, exact=variable in EXACT)
        if not chosen:
            return fail(
                f"{variable}={text} names none of {', '.join(sorted(interfaces))}",
                "name an interface that this host has, or give the host another name for it",
            )
        wrong = _bound_wrong(view, host, chosen)
        if wrong:
            return fail(
                f"{variable}={text} is {', '.join(chosen)}: {wrong}",
                "name the training interface in the network block of the recipe",
            )
        seen.append(f"{variable}={text}")
    return ok(", ".join(seen)) if seen else None


def _bound_wrong(view: View, host: Host, chosen: Sequence[str]) -> str:
    """What is wrong with the interfaces that a library takes; empty where nothing is."""
    if len(view.hosts) == 1:
        return ""
    interfaces = view.part(host, "net")["interfaces"]
    if all(interfaces[name]["loopback"] for name in chosen):
        return "no other host is reached over the loopback"
    address = view.addresses.get(host.name)
    if address and not any(
        entry["address"] == address for name in chosen for entry in interfaces[name]["addresses"]
    ):
        return f"without the training address {address}"
    return ""


def _chosen(text: str, names: Mapping[str, Any], *, exact: bool) -> list[str]:
    """The interfaces, or adapters, that a library takes for a variable's value."""
    left_out, whole = text.startswith("^"), exact or text.lstrip("^").startswith("=")
    words = [word.partition(":")[0].strip() for word in text.lstrip("^=").split(",") if word.strip()]
    fitting = [
        name for name in names if any(name == word if whole else name.startswith(word) for word in words)
    ]
    return [name for name in names if (name in fitting) != left_out] if left_out else fitting


def _adapter(view: View, host: Host) -> Finding | None:
    recipe = None if view.resolved is None else view.resolved.recipe.network
    text = _variable(view, host, ADAPTERS)
    if not text and (recipe is None or recipe.profile != "roce"):
        return None
    adapters = view.part(host, "net")["adapters"]
    chosen = _chosen(text.replace("*", ""), adapters, exact=False) if text else list(adapters)
    if not chosen:
        return fail(f"{ADAPTERS}={text or '(not set)'}; the host has {', '.join(adapters) or 'no RDMA adapter'}",
                    "hand /dev/infiniband to the container and name its adapters, or use the network profile tcp")  # fmt: skip
    active = [
        name for name in chosen if any("ACTIVE" in port["state"] for port in adapters[name]["ports"].values())
    ]
    if not active:
        return fail(f"{', '.join(chosen)}: no port is active", "look at the cables and at ibstat")
    index = _variable(view, host, GID)
    if index is not None and index.isdigit():
        lacking = [
            name
            for name in active
            if not any(int(index) in port["gids"] for port in adapters[name]["ports"].values())
        ]
        if lacking:
            return fail(
                f"{GID}={index}: no such entry on {', '.join(lacking)}",
                "see show_gids, and set network.gid_index",
            )
    return ok(f"{', '.join(active)} active")


def _names(view: View, host: Host) -> Finding | None:
    mine = view.part(host, "net")["names"]
    heads = view.part(view.head, "net")["names"]
    needed = {one.address for one in view.hosts}
    differ, silent = [], []
    for name, said in mine.items():
        if "error" in said and name in needed:
            return fail(f"{name}: {said['error']}", "the name server does not answer: see /etc/resolv.conf")
        if "error" in said:
            silent.append(name)
            continue
        theirs = heads.get(name, {}).get("value")
        # Debian gives a host's own name a loopback address; that is looked at below. An engine gives a container's own name the
        # addresses that it has in all networks, and other containers know it by one of them.
        if (
            theirs is not None
            and not _own_loopback(said["value"])
            and not _own_loopback(theirs)
            and said["value"] != theirs
            and not set(said["value"]) & set(theirs)
        ):
            differ.append(
                f"{name} is {', '.join(said['value']) or 'unknown'} here, {', '.join(theirs) or 'unknown'} on {view.head.name}"
            )
    if differ:
        return fail("; ".join(differ[:3]), "make /etc/hosts or the name server the same on all hosts")
    if silent:
        return warn(
            f"no answer for {', '.join(silent[:4])}",
            "see /etc/resolv.conf: whatever asks for a name waits that long",
        )
    own = view.part(host, "net")["own_name"].get("value") or []
    if own and all(is_loopback(address) for address in own) and len(view.hosts) > 1:
        return warn(f"its own name is {', '.join(own)}: what asks for it gives others an address that they cannot reach",
                    "give the host's name its training address in /etc/hosts")  # fmt: skip
    return ok(f"{len(mine)} names as on {view.head.name}")


def _own_loopback(addresses: Sequence[str]) -> bool:
    return bool(addresses) and all(is_loopback(address.partition("%")[0]) for address in addresses)


def _proxy(view: View, host: Host) -> Finding:
    environment = {**view.part(host, "host")["environment"], **view.variables()}
    by_name = {name.lower(): (name, value) for name, value in environment.items() if value}
    proxies = [by_name[name] for name in PROXIES if name in by_name]
    if not proxies:
        return ok("none set")
    direct = by_name.get("no_proxy", ("", ""))[1]
    caught = [f"{one.name} {view.addresses[one.name]}" for one in view.hosts
              if one.name in view.addresses and not _direct(view.addresses[one.name], direct)]  # fmt: skip
    if caught:
        return fail(
            f"{proxies[0][0]}={proxies[0][1]} would catch {', '.join(caught[:4])}",
            "add the training addresses to no_proxy there, or unset the proxy",
        )
    return ok(f"{proxies[0][0]} is set, all hosts are in no_proxy")


def _direct(address: str, no_proxy: str) -> bool:
    """Whether ``no_proxy`` names the address; networks are not counted, since not every library knows them."""
    words = [word.strip() for word in no_proxy.split(",")]
    return "*" in words or address in words


def _mesh(view: View, host: Host) -> Mapping[str, Any] | None:
    """What its calls said; None where it has no address or no other host to call."""
    found = view.mesh.values.get(host.name)
    if found is None and host.name not in view.mesh.errors:
        return None
    if found is None:
        raise MissingFactError(f"not known: {view.mesh.errors[host.name]}")
    return found


_WHY = {
    "dropped": "no answer",
    "refused": "rejected",
    "no route": "no route",
    "stranger": "another program answered",
}
_FIX = {
    "dropped": "a firewall drops these ports ({side} {host}), or the address is wrong: open them in the training network (nft list ruleset)",
    "refused": "a firewall rejects these ports ({side} {host}): open them in the training network (nft list ruleset)",
    "no route": "look at the interface, cable and routes of {host}, and for a firewall that answers for it",
    "stranger": "another host has this address, or another program took the port: compare the addresses of all hosts",
}


def _reach(view: View, host: Host) -> Finding | None:
    own = _mesh(view, host)
    if own is None:
        return None
    faults = [fault for fault in view.mesh.faults if fault.host == host.name]
    if not faults:
        count = sum(len(calls) for calls in own["calls"].values())
        return (
            ok(f"{len(own['calls'])} hosts reached on {count} ports, and it is reached")
            if own["calls"]
            else None
        )
    names = names_of(view.site.ray)
    seen = []
    for fault in faults:
        ports = ", ".join(f"{port} ({names.get(port, 'MCCL, Gloo, SGLang')})" for port in fault.ports)
        way = "from" if fault.direction == "incoming" else "to"
        error = f", {fault.error}" if fault.error else ""
        seen.append(
            f"{fault.direction}: {_WHY.get(fault.status, fault.status)}{error} {way} {', '.join(fault.peers)} on TCP {ports}"
        )
    first = faults[0]
    side = "into" if first.direction == "incoming" else "out of"
    return fail(
        "; ".join(seen),
        _FIX.get(first.status, "look at the network of {host}").format(side=side, host=host.name),
    )


def _source(view: View, host: Host) -> Finding | None:
    """Whether the others saw this host's calls come from its training address."""
    if _mesh(view, host) is None:
        return None
    own = view.addresses[host.name]
    seen = {one.name: said["callers"][host.name] for one in view.answering
            if (said := view.mesh.values.get(one.name)) is not None and host.name in said["callers"]}  # fmt: skip
    wrong = {
        name: source
        for name, source in seen.items()
        if ipaddress.ip_address(source.partition("%")[0]) != ipaddress.ip_address(own)
    }
    if wrong:
        source = next(iter(wrong.values()))
        return fail(
            f"{', '.join(wrong)} saw its calls come from {source}, not from {own}",
            "no address translation and no other interface between training hosts: see ip route, nft list table nat",
        )
    return ok(f"seen as {own} by {len(seen)} hosts") if seen else None


@dataclass(frozen=True)
class Pull:
    """A transfer of some MiB from ``sender`` to ``receiver``; ``rate`` in bytes a second."""

    sender: str
    receiver: str
    got: int
    wanted: int
    rate: float

    @property
    def stalled(self) -> bool:
        """Whether not even one full packet arrived, though small calls pass between the two; a slow link lets its queue's length through."""
        return self.got < min(JUMBO_FRAME, self.wanted)

    def slow(self, usual: float) -> bool:
        """Whether it took strangely long, where ``usual`` is what most transfers reach."""
        return self.got < self.wanted or self.rate < max(SLOW_BYTES, SLOW_SHARE * usual)

    def __str__(self) -> str:
        return f"{self.got / 2**20:.1f} of {self.wanted / 2**20:.0f} MiB from {self.sender} to {self.receiver} at {self.rate / 1e6:.1f} MB/s"


def _pulls(view: View) -> list[Pull]:
    return [
        Pull(sender, receiver, one["bytes"], one["wanted"], one["bytes"] / max(one["seconds"], 1e-6))
        for receiver, value in view.mesh.values.items()
        for sender, one in value["pulled"].items()
        if one.get("bytes") is not None  # where the sender was not reached at all, net.reach says it
    ]


def _blamed(pulls: Sequence[Pull], bad: Sequence[Pull]) -> dict[str, list[Pull]]:
    """Host -> the bad transfers that it most likely causes: all that it sent, or all that it received; else the sender's."""
    found: dict[str, list[Pull]] = {}
    left = list(bad)
    for side in ("sender", "receiver"):
        for name in dict.fromkeys(getattr(one, side) for one in left):
            own = [one for one in pulls if getattr(one, side) == name]
            if len(own) > 1 and all(one in left for one in own):
                found.setdefault(name, []).extend(own)
        left = [one for one in left if not any(one in taken for taken in found.values())]
    for one in left:
        found.setdefault(one.sender, []).append(one)
    return found


@lru_cache(maxsize=2)
def _transfers(view: View) -> tuple[list[Pull], float, dict[str, list[Pull]], dict[str, list[Pull]]]:
    """All transfers, the median of their rates, and who is blamed for those that stall and those that are slow."""
    pulls = _pulls(view)
    usual = statistics.median(one.rate for one in pulls) if pulls else 0.0
    stalled = _blamed(pulls, [one for one in pulls if one.stalled])
    return (
        pulls,
        usual,
        stalled,
        _blamed(pulls, [one for one in pulls if one.slow(usual) and not one.stalled]),
    )


def _transfer(view: View, host: Host) -> Finding | None:
    """Whether large data moves as between the others; small calls pass where large ones are lost to a wrong MTU."""
    pulls, usual, stalled, slow = _transfers(view)
    own = [one for one in pulls if host.name in {one.sender, one.receiver}]
    if not own:
        return None
    if host.name in stalled:
        return fail(
            f"{'; '.join(map(str, stalled[host.name]))}: small messages pass, large ones do not",
            f"make the MTU of {host.name}, its peers and all switches between them equal; see that no firewall drops ICMP",
        )
    if host.name in slow:
        bad = slow[host.name]
        peers = ", ".join(
            dict.fromkeys(name for one in bad for name in (one.sender, one.receiver) if name != host.name)
        )
        return warn(
            f"{'; '.join(map(str, bad))}; the median is {usual / 1e6:.1f}",
            f"look at the link between {host.name} and {peers}: ethtool, tc qdisc, the switch's counters",
        )
    return ok("; ".join(map(str, own)))


@lru_cache(maxsize=2)
def _delays(view: View) -> dict[str, list[float]]:
    """Host -> milliseconds of its quickest call to each other host that it reached."""
    return {
        name: [min(quick) for calls in value["calls"].values() if (quick := [one["ms"] for one in calls.values() if one["status"] == "ok"])]
        for name, value in view.mesh.values.items()
    }  # fmt: skip


def _delay(view: View, host: Host) -> Finding | None:
    if _mesh(view, host) is None or not _delays(view)[host.name]:
        return None
    usual = statistics.median(ms for own in _delays(view).values() for ms in own)
    mine = statistics.median(_delays(view)[host.name])
    if mine > SLOW_MS and mine > usual * 10:
        return warn(
            f"{mine:.1f} ms to open a connection, {usual:.1f} ms between most",
            "look at the host's link and its load: ping, tc qdisc",
        )
    return ok(f"{mine:.1f} ms to open a connection")


CHECKS = (
    HostCheck("net.address", "address in the training network", _address),
    HostCheck("net.interface", "training interface", _interface),
    HostCheck("net.management", "training address apart from management", _management),
    HostCheck("net.subnet", "one training network", _subnet),
    HostCheck("net.mtu", "MTU of the training interface", _mtu),
    HostCheck("net.route", "routes to the other hosts", _route),
    HostCheck("net.ifname", "interfaces that MCCL and Gloo are bound to", _ifname),
    HostCheck("net.adapter", "RDMA adapters", _adapter),
    HostCheck("net.names", "names of all hosts", _names),
    HostCheck("net.proxy", "proxies in the environment", _proxy),
    HostCheck("net.reach", "every host calls every other one on the job's ports", _reach),
    HostCheck("net.source", "address that others see", _source),
    HostCheck("net.transfer", "a larger transfer to and from two other hosts", _transfer),
    HostCheck("net.delay", "time to open a connection", _delay),
)
