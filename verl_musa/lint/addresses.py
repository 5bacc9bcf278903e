"""Which texts name a host of one site: private addresses, host:port pairs and internal host names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from verl_musa.lint.words import word_set

_IPV4: Final = re.compile(r"(?<![\w.=<>~!-])(\d{1,3}(?:\.\d{1,3}){3})(?::(\d{2,5}))?(/\d{1,2})?(?![\w.]|-\d)")
_AFTER_EQUALS: Final = re.compile(
    r"(?<![=<>~!])=(\d{1,3}(?:\.\d{1,3}){3})(?::(\d{2,5}))?(/\d{1,2})?(?![\w.]|-\d)"
)
_BRACKETED: Final = re.compile(r"\[([0-9A-Fa-f:.]{3,})(?:%\w+)?\]")
_BARE_IPV6: Final = re.compile(
    r"(?<![\w:.])((?:[0-9A-Fa-f]{1,4}:+){2,}[0-9A-Fa-f]{0,4})(?:%\w+)?(/\d{1,3})?(?![\w:.])"
)
_URL: Final = re.compile(
    r"\b(?:https?|tcp|ray|grpc|redis|wss?|zmq|nfs|hdfs|etcd|ssh)://(?:[^@/\s\"']*@)?([A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*)"
    r"(?::(\d{1,5}))?(?=[/\s\"'?,;)]|$)"
)
_HOST_PORT: Final = re.compile(
    r"(?<![\w./@-])((?:node|host|gpu|worker|master|head|server|compute|musa|mtt|s5000|dgx|slave)s?[-_]?[a-z]*[-_]?\d+[\w-]*"
    r"(?:\.[a-z][\w.-]*)?):(\d{4,5})(?![\w.])"
)
_INTERNAL: Final = (".local", ".lan", ".internal", ".intra", ".intranet", ".corp", ".cluster", ".home.arpa")
_PLACES_OF_EVERY_HOST: Final = word_set(
    "localhost host.docker.internal metadata.google.internal host hostname server ip node address addr example proxy url endpoint"
)
_PLACEHOLDER: Final = re.compile(
    r"your|my-|xxx|example|some|placeholder|foo|bar|test|dummy|invalid", re.IGNORECASE
)
_METADATA: Final = ipaddress.ip_address("169.254.169.254")
_SHARED: Final = ipaddress.ip_network("100.64.0.0/10")
_DOCUMENTATION: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")
)


def inside(text: str) -> Iterator[str]:
    """Yield the address of every host of one site that ``text`` names."""
    for pattern in (_IPV4, _AFTER_EQUALS):
        for found in pattern.finditer(text):
            if is_of_a_site(found[1] + (found[3] or ""), with_port=bool(found[2])):
                yield found[0].lstrip("=")
    for found in _BRACKETED.finditer(text):
        if is_of_a_site(found[1]):
            yield found[1]
    for found in _BARE_IPV6.finditer(text):
        if is_of_a_site(found[1] + (found[2] or "")):
            yield found[1]
    yield from _named(text)


def _named(text: str) -> Iterator[str]:
    for found in _URL.finditer(text):
        host, port = found[1].lower(), found[2]
        if host in _PLACES_OF_EVERY_HOST or _PLACEHOLDER.search(host) or re.fullmatch(r"[\d.]+", host):
            continue
        numbered = "." not in host and (port or re.search(r"\d", host))
        if numbered or host.endswith(_INTERNAL):
            yield f"{host}:{port}" if port else host
    for found in _HOST_PORT.finditer(text):
        if not text[: found.start()].endswith("//"):
            yield found[0]


def is_of_a_site(text: str, *, with_port: bool = False) -> bool:
    """Whether ``text`` is the address of one host in a private network, or of any one host where it has a port.

    Loopback, wildcard, multicast, documentation and whole networks (``10.0.0.0/8``) are nobody's host.
    """
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError:
        return False
    address = interface.ip
    if "/" in text and interface.network.network_address == address and interface.network.num_addresses > 1:
        return False
    if address.is_loopback or address.is_unspecified or address.is_multicast or address == _METADATA:
        return False
    if any(address in network for network in _DOCUMENTATION if network.version == address.version):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        reserved = address.is_reserved or int(address) >> 24 == 0
        shared = address in _SHARED
        return not reserved and (address.is_private or address.is_link_local or shared or with_port)
    return address.is_link_local or (address.is_private and int(address) >> 121 == 0xFC >> 1)
