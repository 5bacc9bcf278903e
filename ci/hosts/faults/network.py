"""Faults of networks: firewalls, interfaces, routes, links."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ci.hosts.model import Host, Hosts, Which

_numbers = itertools.count(1)


@contextmanager
def _table(host: Host, rules: Sequence[str], *, hook: str = "input") -> Iterator[None]:
    """A firewall table of its own in a host, so that taking it back touches no other fault's."""
    name = f"fault{next(_numbers)}"
    lines = (
        f"table inet {name} {{",
        "chain rules {",
        f"type filter hook {hook} priority 0; policy accept;",
        *rules,
        "}",
        "}",
    )
    text = "".join(f"{line}\n" for line in lines)
    host.run(["nft", "-f", "-"], stdin=text)
    try:
        yield
    finally:
        host.run(["nft", "delete", "table", "inet", name])


@contextmanager
def port_drop(host: Host, ports: str, *, device: str | None = None) -> Iterator[None]:
    """Connections to these ports of the host hang until they time out: a firewall that drops (a cloud's security group).

    ``ports`` is one port, ``20000-24999`` or ``{ 6379, 8265 }``; ``device`` narrows it to what comes in there.
    """
    with _table(host, [f"{_on(device)}tcp dport {ports} drop"]):
        yield


@contextmanager
def port_reject(host: Host, ports: str, *, device: str | None = None) -> Iterator[None]:
    """Connections to these ports of the host are refused at once, though somebody listens: a firewall that rejects (firewalld)."""
    with _table(host, [f"{_on(device)}tcp dport {ports} reject with tcp reset"]):
        yield


@contextmanager
def one_way(host: Host, peers: Sequence[Host]) -> Iterator[None]:
    """The host reaches the peers, they do not reach it in the training network: joins exit 0, and the node is dropped a minute later."""
    sources = ", ".join(peer.training for peer in peers)
    with _table(host, [f"ip saddr {{ {sources} }} ct state new drop"]):
        yield


@contextmanager
def management_closed(hosts: Hosts) -> Iterator[None]:
    """Between hosts the management network carries nothing; ssh from outside works: the usual rule, which bites who registers that address."""
    with ExitStack() as stack:
        for host in hosts.hosts:
            sources = ", ".join(peer.management for peer in hosts.others(host))
            stack.enter_context(_table(host, [f"ip saddr {{ {sources} }} drop"]))
        yield


@contextmanager
def unreachable(host: Host) -> Iterator[None]:
    """Nothing of the host answers, and nothing says so: ssh times out; a wrong VLAN, or a machine that hangs."""
    with _table(host, ['iifname "eth*" drop']):
        yield


@contextmanager
def large_packets_lost(host: Host, *, above: int = 1000, device: str = "eth1") -> Iterator[None]:
    """Small messages pass, large ones hang: a switch with a smaller MTU than the hosts, and no ICMP."""
    with _table(host, [f'iifname "{device}" meta length > {above} drop']):
        yield


@contextmanager
def interface_down(host: Host, which: Which = "training") -> Iterator[None]:
    """The host's interface is down: a cable, a port of the switch, a bond that never came up."""
    device = _device(which)
    host.run(["ip", "link", "set", device, "down"])
    try:
        yield
    finally:
        host.run(["ip", "link", "set", device, "up"])
        _restore_ipv6(host, which)


@contextmanager
def interface_renamed(host: Host, name: str, which: Which = "training") -> Iterator[None]:
    """The interface has another name on this host: MCCL_SOCKET_IFNAME names one that is not there; another slot or driver."""
    device = _device(which)
    script = 'ip link set "$1" down; ip link set "$1" name "$2"; ip link set "$2" up'
    host.sh(script, device, name)
    try:
        yield
    finally:
        host.sh(script, name, device)
        _restore_ipv6(host, which)


@contextmanager
def mtu_differs(host: Host, mtu: int, which: Which = "training") -> Iterator[None]:
    """The host's MTU is another: fine until a message is larger; jumbo frames set on all hosts but one."""
    device = _device(which)
    before = host.sh('cat "/sys/class/net/$1/mtu"', device).strip()
    host.run(["ip", "link", "set", device, "mtu", str(mtu)])
    try:
        yield
    finally:
        host.run(["ip", "link", "set", device, "mtu", before])


@contextmanager
def wrong_route(host: Host, to: Host) -> Iterator[None]:
    """Packets to the other's training address leave by the management interface: slow, and closed where that is; a stale static route."""
    route = [f"{to.training}/32", "via", to.management, "dev", _device("management")]
    host.run(["ip", "route", "add", *route])
    try:
        yield
    finally:
        host.run(["ip", "route", "del", *route])


@contextmanager
def slow_link(host: Host, rate: str = "2mbit", which: Which = "training") -> Iterator[None]:
    """What the host sends goes at this rate (``tc``'s notation): a link that came up at a tenth of its speed, a bad cable."""
    device = _device(which)
    # The kernel at hand has tbf; netem, which could add delay and loss, is rarely built in.
    shape = ["root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms"]
    host.run(["tc", "qdisc", "add", "dev", device, *shape])
    try:
        yield
    finally:
        host.run(["tc", "qdisc", "del", "dev", device, "root"])


def _device(which: Which) -> str:
    return "eth0" if which == "management" else "eth1"


def _on(device: str | None) -> str:
    return "" if device is None else f'iifname "{device}" '


def _restore_ipv6(host: Host, which: Which) -> None:
    """The kernel forgets global IPv6 addresses of an interface that goes down."""
    address = host.management6 if which == "management" else host.training6
    host.run(["ip", "-6", "address", "replace", f"{address}/64", "dev", _device(which), "nodad"])
