"""Faults of names: what ``/etc/hosts`` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ci.hosts.model import Host, Hosts

# In place, not renamed: the engine mounts this one file.
_SET = """
cp /etc/hosts /run/hosts.before
{ echo "$2 $1"; awk -v name="$1" '$2 != name' /run/hosts.before; } > /etc/hosts
"""
_BACK = "cat /run/hosts.before > /etc/hosts; rm /run/hosts.before"


@contextmanager
def name_resolves_differently(host: Host, name: str, address: str) -> Iterator[None]:
    """On this host the name means another address: it joins another machine, or waits for one; a stale ``/etc/hosts``."""
    host.sh(_SET, name, address)
    try:
        yield
    finally:
        host.sh(_BACK)


@contextmanager
def head_is_loopback(hosts: Hosts) -> Iterator[None]:
    """The head's own name is 127.0.1.1 there, as Debian installs it: it registers an address that no other host reaches."""
    loopback = "127.0.1.1"
    with name_resolves_differently(hosts.head, hosts.head.name, loopback):
        yield
