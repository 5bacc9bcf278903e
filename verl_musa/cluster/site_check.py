"""``verl-musa site check``: what can be said about site.yaml and its hosts without asking one of them."""

from __future__ import annotations

import ipaddress
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_musa.checks import Check, Finding, Result, fail, ok, run_checks, warn
from verl_musa.cluster.hosts import Host, hosts_of
from verl_musa.errors import VerlMusaError
from verl_musa.recipe import Site, load_site

RAY_METRICS = frozenset({44217, 44227})
"""Ray's autoscaler and dashboard serve their own metrics there, whatever else is asked for."""

EPHEMERAL = (32768, 60999)
"""Ports that Linux hands out by itself unless told otherwise (ip_local_port_range)."""

USUAL_GCS, USUAL_DASHBOARD = 6379, 8265


@dataclass(frozen=True)
class _Subject:
    site: Site
    hosts: tuple[Host, ...]


def check_site(path: Path | None, named: Sequence[str] = (), head: str | None = None) -> list[Result]:
    """All results; the first mistake in the file itself, or among its hosts, is the only one, since nothing can be read past it."""
    read: list[Site] = []

    def schema(_: None) -> Finding:
        read.append(load_site(path))
        source = read[0].source
        return (
            ok(str(source))
            if source
            else warn("there is none", "copy site.example.yaml to site.yaml and adapt it")
        )

    results = run_checks([Check("site.schema", "site.yaml, key by key", _explained(schema))], None)
    if not read:
        return results
    site = read[0]
    found: list[Host] = []

    def hosts(_: None) -> Finding:
        found.extend(hosts_of(site, named, head=head))
        rest = ", ".join(host.name for host in found[1:])
        return ok(f"head {found[0].name}" + (f", then {rest}" if rest else ""))

    results += run_checks(
        [Check("site.hosts", "hosts, each once, and the head among them", _explained(hosts))], None
    )
    if not found:
        return results
    return results + run_checks(CHECKS, _Subject(site, tuple(found)))


def _explained(check: Callable[[None], Finding]) -> Callable[[None], Finding]:
    """``check``, with everything that an error says in its finding."""

    def explained(subject: None) -> Finding:
        try:
            return check(subject)
        except VerlMusaError as error:
            seen = "; ".join(part for part in (error.message, error.found and f"found {error.found}") if part)
            fix = "; ".join(
                part for part in (error.expected and f"expected {error.expected}", error.fix) if part
            )
            return fail(seen, fix, error.where or "")

    return explained


def _where(site: Site, *location: str | int) -> str:
    return "" if site.document is None else site.document.where(location)


def _twice(texts: Sequence[tuple[str, str]]) -> list[str]:
    """``TEXT (HOST, HOST)`` for each text that several hosts have."""
    counts = Counter(text for _, text in texts)
    return [
        f"{text} ({', '.join(name for name, one in texts if one == text)})"
        for text, count in counts.items()
        if count > 1
    ]


def _canonical(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text.lower()


def _addresses(subject: _Subject) -> Finding:
    where = _where(subject.site, "hosts")
    for kind, texts in (
        ("ssh goes to", [(host.name, _canonical(host.address)) for host in subject.hosts]),
        (
            "training address",
            [(host.name, _canonical(host.training)) for host in subject.hosts if host.training],
        ),
    ):
        twice = _twice(texts)
        if twice:
            return fail(
                f"{kind} the same place twice: {', '.join(twice)}", "give each host its own address", where
            )
    families = {
        host.name: ipaddress.ip_address(host.training).version for host in subject.hosts if host.training
    }
    if len(set(families.values())) > 1:
        seen = ", ".join(f"{name} IPv{version}" for name, version in families.items())
        return fail(f"training addresses of both kinds: {seen}", "use IPv4 on all hosts, or IPv6", where)
    loopback = [
        host.name
        for host in subject.hosts
        if host.training and ipaddress.ip_address(host.training).is_loopback
    ]
    if loopback and len(subject.hosts) > 1:
        return fail(
            f"the training address of {', '.join(loopback)} is the loopback",
            "give it an address that others reach",
            where,
        )
    return ok(f"{len(subject.hosts)} hosts, {len(families)} with a training address")


def _network(text: str | None) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return None if text is None else ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _networks(subject: _Subject) -> Finding:
    networks, where = subject.site.networks, _where(subject.site, "networks")
    management, training = _network(networks.management), _network(networks.training)
    if (
        networks.training is None
        and not all(host.training for host in subject.hosts)
        and len(subject.hosts) > 1
    ):
        return warn(
            "no training network: the address that ssh arrives at is taken", "set networks.training", where
        )
    if management and training and management.version == training.version and management.overlaps(training):
        same = management == training
        finding = warn if same else fail
        return finding(f"management {management} and training {training} {'are one' if same else 'overlap'}",
                       "name the two networks apart; with one network leave management out", where)  # fmt: skip
    for host in subject.hosts:
        address = None if host.training is None else ipaddress.ip_address(host.training)
        if address is not None and training is not None and address not in training:
            return fail(
                f"{host.name}: training address {address} is not in {training}",
                "correct one of the two",
                where,
            )
        if address is not None and management is not None and address in management:
            return fail(
                f"{host.name}: training address {address} is in the management network {management}",
                "correct one of the two",
                where,
            )
    return ok(f"management {networks.management or '-'}, training {networks.training or '-'}")


def _ports(subject: _Subject) -> Finding:
    site, where = subject.site, _where(subject.site, "ray")
    ray = {name: value for name, value in site.ray.model_dump().items() if isinstance(value, int)}
    low, high = site.ray.workers
    for name, value in ray.items():
        if value in RAY_METRICS:
            return fail(
                f"ray.{name} is {value}, where Ray serves its own metrics", "choose another port", where
            )
        if value == site.ssh.port:
            return fail(f"ray.{name} is {value}, the port of sshd", "choose another port", where)
    if any(low <= port <= high for port in (*RAY_METRICS, *([site.ssh.port] if site.ssh.port else []))):
        return fail(
            f"ray.workers {low}-{high} holds a port of sshd or of Ray's own metrics",
            "choose another range",
            where,
        )
    if site.ray.port == USUAL_DASHBOARD or site.ray.dashboard == USUAL_GCS:
        return fail(f"ray.port is {site.ray.port} and ray.dashboard {site.ray.dashboard}: these look swapped",
                    f"ray.port is the control store's ({USUAL_GCS}), ray.dashboard the Jobs API's ({USUAL_DASHBOARD})", where)  # fmt: skip
    if low <= EPHEMERAL[1] and high >= EPHEMERAL[0]:
        return warn(
            f"ray.workers {low}-{high} reaches into {EPHEMERAL[0]}-{EPHEMERAL[1]}, which Linux hands to any program",
            "choose a lower range",
            where,
        )
    return ok(f"control store {site.ray.port}, Jobs API {site.ray.dashboard}, workers {low}-{high}")


def _files(subject: _Subject) -> Finding:
    settings = subject.site.ssh
    given: Mapping[str, str | None] = {
        "key": settings.key,
        "known_hosts": settings.known_hosts,
        "config": settings.config,
    }
    for name, text in given.items():
        if text is None:
            continue
        path, where = Path(text).expanduser(), _where(subject.site, "ssh", name)
        if not path.is_file():
            return fail(f"ssh.{name}: no file {path}", "correct the path", where)
        if name == "key" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            return fail(
                f"ssh.key: others may read {path}, and ssh then refuses it", f"chmod 600 {path}", where
            )
    return ok(
        ", ".join(f"ssh.{name}" for name, text in given.items() if text) or "your own ssh configuration"
    )


def _shared(subject: _Subject) -> Finding:
    if subject.site.shared is None and len(subject.hosts) > 1:
        return fail(
            "no shared folder",
            "set `shared` to a folder that all hosts see under one path",
            _where(subject.site),
        )
    return ok(subject.site.shared or "one host, none needed")


CHECKS: tuple[Check[_Subject], ...] = (
    Check("site.addresses", "addresses of the hosts", _addresses),
    Check("site.networks", "management and training network", _networks),
    Check("site.ports", "ports that get into each other's way", _ports),
    Check("site.ssh", "files that ssh is given", _files),
    Check("site.shared", "the shared folder", _shared),
)
