"""Stand-in cards: what a host with Moore Threads GPUs shows from outside, on hosts without one.

``mthreads-gmi`` prints a table, ``/dev/mtgpuN`` are there and can be held open, and the SDK's folder names versions. Nothing
can be computed on them: they are for checks that look at cards without using them, and for nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from ci.hosts.faults import started
from ci.hosts.model import Host, Hosts

_FACTS = "/run/cards.json"
_TOOL = f"""\
#!/usr/bin/python3
import json
facts = json.load(open("{_FACTS}"))
print("mthreads-gmi:1.14.0           Driver Version:" + facts["driver"])
for index, used in enumerate(facts["used_mib"]):
    print(f"{{index}}    MTT S5000    |00000000:{{index + 1:02x}}:00.0   |0%    {{used}}MiB({{facts['total_mib']}}MiB)")
"""
# $1 facts, $2 SDK, $3 to $5 MCCL. Character device 1:3 is the null device: it opens, and takes what is written.
_PUT = """
printf %s "$1" > /run/cards.json
rm -f /dev/mtgpu*
count=$(python3 -c 'import json, sys; print(len(json.loads(sys.argv[1])["used_mib"]))' "$1")
for index in $(seq 0 $((count - 1))); do mknod "/dev/mtgpu$index" c 1 3; done
mkdir -p /usr/local/musa/include
printf '{"musa_toolkits": {"version": "%s"}}' "$2" > /usr/local/musa/version.json
printf '#define MCCL_MAJOR %s\\n#define MCCL_MINOR %s\\n#define MCCL_PATCH %s\\n' "$3" "$4" "$5" > /usr/local/musa/include/mccl.h
"""
_TAKE = "rm -rf /usr/local/musa /run/cards.json /usr/local/bin/mthreads-gmi /dev/mtgpu*"


@dataclass(frozen=True)
class Cards:
    """The cards of one host.

    Attributes:
        used_mib: memory in use, of each card.
        total_mib: memory of a card.
        driver: version of the driver.
        sdk: version of the MUSA SDK.
        mccl: version of MCCL.
    """

    used_mib: tuple[int, ...] = (1, 1, 1, 1)
    total_mib: int = 81920
    driver: str = "3.3.0"
    sdk: str = "4.3.1"
    mccl: tuple[int, int, int] = (2, 11, 4)


def _put(host: Host, cards: Cards) -> None:
    facts = {"used_mib": cards.used_mib, "total_mib": cards.total_mib, "driver": cards.driver}
    host.sh(_PUT, json.dumps(facts), cards.sdk, *map(str, cards.mccl))


@contextmanager
def stand_in_cards(hosts: Hosts, cards: Cards) -> Iterator[None]:
    """The same cards in every host, in the block."""
    with ExitStack() as stack:
        for host in hosts.hosts:
            stack.callback(host.sh, _TAKE)
            host.sh('printf %s "$1" > "$2"; chmod 755 "$2"', _TOOL, "/usr/local/bin/mthreads-gmi")
            _put(host, cards)
        yield


@contextmanager
def other_cards(host: Host, before: Cards, after: Cards) -> Iterator[None]:
    """This host's cards are others: one fell off the bus, another driver, another MCCL, memory in use; each breaks the first collective."""
    _put(host, after)
    try:
        yield
    finally:
        _put(host, before)


def fewer_cards(cards: Cards) -> Cards:
    """One card less."""
    return replace(cards, used_mib=cards.used_mib[:-1])


def used_card(cards: Cards, used_mib: int) -> Cards:
    """The first card's memory is in use."""
    return replace(cards, used_mib=(used_mib, *cards.used_mib[1:]))


@contextmanager
def held_card(host: Host, index: int = 0) -> Iterator[int]:
    """Another process holds a card of this host: somebody's notebook, or what is left of the last job; yields its id."""
    code = "import sys, time; held = open(sys.argv[1]); time.sleep(3600)"
    with started(host, ["python3", "-c", code, f"/dev/mtgpu{index}"]) as pid:
        host.sh(
            'i=0; while [ ! -e "/proc/$1/fd/3" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; ls -l "/proc/$1/fd" | grep -q mtgpu',
            str(pid),
        )
        yield pid
