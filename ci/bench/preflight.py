"""How long preflight takes for many hosts: ``python ci/bench/preflight.py [HOSTS …]`` prints a table.

No host is needed: a few are played by this machine, which runs the real probe; the others answer with what these said, under their own
names and addresses, after the same time. What is measured is everything on this side: programs, connections, comparison, table.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight import Bounds, look, render
from verl_musa.cluster.preflight.probe import MARK
from verl_musa.cluster.preflight.program import read_answer
from verl_musa.cluster.ssh import Done
from verl_musa.recipe import Site

REAL = 2
"""Hosts for which the probe really runs; more would measure this machine's cores."""

SSH_S = 0.3
"""What one ssh takes until a command runs, in a quick network."""

TRAINING = "198.51.100."


def hosts_of(count: int) -> tuple[Host, ...]:
    """Hosts that are not there."""
    return tuple(
        Host(f"192.0.2.{number}", f"192.0.2.{number}", number == 1, training=f"{TRAINING}{number}")
        for number in range(1, count + 1)
    )


class Played:
    """Hosts played by this machine: a ``Remote`` without ssh."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._number = {host.name: number for number, host in enumerate(hosts, 1)}
        self._names = [host.name for host in hosts]
        self._facts: dict[str, Any] | None = None
        self._known = threading.Event()
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()

    def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
        """Answer as that host would."""
        start = time.monotonic()
        with self._lock:
            self.calls[host.name] += 1
        time.sleep(SSH_S)
        parameters = json.loads(_parameters(stdin))
        if "asked" in parameters:
            answer = self._first(host, argv, stdin, timeout_s)
        elif "dial" in parameters:
            answer = _wrapped("mesh", self._mesh(host, parameters))
        else:
            answer = _wrapped("data", _data(parameters))
        return Done(host.name, 0, f"{MARK}{json.dumps(answer)}\n".encode(), "", time.monotonic() - start)

    def _first(self, host: Host, argv: Sequence[str], stdin: bytes, timeout_s: float) -> dict[str, Any]:
        number = self._number[host.name]
        if number <= REAL:
            done = subprocess.run(
                [sys.executable, *argv[1:]], input=stdin, capture_output=True, timeout=timeout_s, check=False
            )
            answer = read_answer(done.stdout)
            if answer is None:
                raise RuntimeError(f"the probe said nothing: {done.stderr.decode()[-500:]}")
            self._facts = answer
            self._known.set()
        elif not self._known.wait(timeout_s):
            raise RuntimeError("no probe has answered")
        facts: dict[str, Any] = json.loads(json.dumps(self._facts))
        facts["began"], facts["ended"] = time.time() - 0.1, time.time()
        interface = {"index": 2, "up": True, "state": "up", "loopback": False, "mtu": 9000, "speed": 100000,
                     "addresses": [{"address": f"{TRAINING}{number}", "prefix": 24}]}  # fmt: skip
        net = facts["parts"]["net"]["value"]
        net["interfaces"]["train0"], net["ray"], net["listeners"], net["own_name"] = (
            interface,
            [],
            [],
            {"value": []},
        )
        return facts

    def _mesh(self, host: Host, parameters: dict[str, Any]) -> dict[str, Any]:
        return {
            "bound": {str(port): "ok" for port in parameters["listen"]},
            "calls": {one["host"]: {str(port): {"status": "ok", "ms": 0.2, "error": ""} for port in one["ports"]} for one in parameters["dial"]},
            "callers": {name: f"{TRAINING}{self._number[name]}" for name in self._names if name != host.name},
            "clocks": {name: [0.0, 0.001] for name in self._names if name != host.name},
            "pulled": {one["host"]: {"bytes": 2**22, "wanted": 2**22, "seconds": 0.01, "error": ""} for one in parameters["pulls"]},
            "routes": {one["host"]: {"source": parameters["address"]} for one in parameters["dial"]},
            "uncalled": 0,
        }  # fmt: skip


def _parameters(program: bytes) -> str:
    """What stands behind a probe's parts."""
    import ast

    call = ast.parse(program.splitlines()[-1]).body[0]
    if (
        not isinstance(call, ast.Expr)
        or not isinstance(call.value, ast.Call)
        or not isinstance(call.value.args[1], ast.Call)
    ):
        raise TypeError("not a probe")
    return str(ast.literal_eval(call.value.args[1].args[0]))


def _wrapped(part: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"began": time.time(), "ended": time.time(), "parts": {part: {"value": value}}}


def _data(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"canary": {"value": {"missing": [], "seconds": 0.1, "left": []}}, "shared": {"value": None}, "paths": {name: {"value": {"exists": False, "parent": "/"}} for name in parameters["paths"]}}  # fmt: skip


def measure(count: int) -> dict[str, float]:
    """Seconds, ssh calls and results for ``count`` hosts."""
    hosts = hosts_of(count)
    remote = Played(hosts)
    site = Site.model_validate(
        {
            "shared": str(Path.cwd()),
            "networks": {"training": f"{TRAINING}0/24"},
            "limits": {"nofile": 1024, "nproc": 1024, "shm_gib": 0.1, "free_gib": 1},
        }
    )
    start = time.monotonic()
    found = look(site, hosts, None, remote, bounds=Bounds(facts=60.0))
    looked = time.monotonic() - start
    render(found.results, Console(file=io.StringIO(), width=160))
    return {"hosts": count, "seconds": looked, "table_s": time.monotonic() - start - looked, "ssh": remote.calls.total(),
            "results": len(found.results), "failed": len(found.failed)}  # fmt: skip


def main() -> int:
    """Print the table."""
    counts = [int(text) for text in sys.argv[1:]] or [4, 16, 64]
    print(f"{'hosts':>6} {'seconds':>8} {'table':>6} {'ssh':>5} {'results':>8} {'failed':>7}")
    for count in counts:
        one = measure(count)
        print(
            f"{one['hosts']:>6} {one['seconds']:>8.1f} {one['table_s']:>6.2f} {one['ssh']:>5} {one['results']:>8} {one['failed']:>7}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
