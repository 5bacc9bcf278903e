"""Faults of processes and whole hosts, before and during a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ci.hosts.model import Host, Hosts

_LISTEN = """
import collections, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.socket(family)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen()
kept = collections.deque(maxlen=50)  # a connection that nobody holds is closed
while True:
    kept.append(server.accept())
"""

# The processes whose command line holds all of the words, as JSON; not this one and not those that started it.
_FIND = """
import json, os, sys
found, own, up = [], set(), os.getpid()
while up > 0:
    own.add(up)
    try:
        up = int(open(f"/proc/{up}/stat").read().rpartition(")")[2].split()[1])
    except OSError:
        break
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in own:
        try:
            line = open(f"/proc/{name}/cmdline", "rb").read().replace(b"\\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if line and all(word in line for word in sys.argv[1:]):
            found.append(int(name))
print(json.dumps(sorted(found)))
"""


def pids_of(host: Host, *words: str) -> list[int]:
    """The host's processes whose command line holds all of these words."""
    found: list[int] = json.loads(host.run(["python3", "-c", _FIND, *words]))
    return found


@contextmanager
def started(host: Host, argv: Sequence[str]) -> Iterator[int]:
    """Somebody else's process runs on the host; yields its id."""
    pid = host.spawn(argv)
    try:
        yield pid
    finally:
        host.end(pid)


@contextmanager
def port_taken(host: Host, port: int, address: str = "0.0.0.0") -> Iterator[int]:  # noqa: S104  (as a forgotten service does)
    """The port is another program's: "address already in use", or a cluster that answers wrongly; a forgotten service."""
    with started(host, ["python3", "-c", _LISTEN, address, str(port)]) as pid:
        script = 'i=0; while ! ss -Hltn "sport = :$1" | grep -q . && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; ss -Hltn "sport = :$1" | grep -q .'
        host.sh(script, str(port))
        yield pid


@contextmanager
def killed(host: Host, pids: Sequence[int]) -> Iterator[None]:
    """Processes of the host die at once and do not come back: the kernel's OOM killer, a crash of a driver."""
    for pid in pids:
        host.run(["kill", "-KILL", str(pid)])
    yield


@contextmanager
def frozen(host: Host, pids: Sequence[int]) -> Iterator[None]:
    """Processes of the host stand still, with all their connections open: a hung kernel call, a card that does not answer."""
    for pid in pids:
        host.run(["kill", "-STOP", str(pid)])
    try:
        yield
    finally:
        for pid in pids:
            host.ask(["kill", "-CONT", str(pid)])


@contextmanager
def killed_host(hosts: Hosts, host: Host) -> Iterator[None]:
    """The host is gone at once: power, a kernel panic; ssh says "No route to host", Ray calls it Active for a while."""
    host.backend.kill(host.name)
    try:
        yield
    finally:
        hosts.revive(host)
