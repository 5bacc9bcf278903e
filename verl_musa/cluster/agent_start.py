"""Starting a host's Ray: refuse where another one is in the way, start it in a session of its own, wait with a bound."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from verl_musa.cluster.host import port_is_free
from verl_musa.cluster.local_ray import dashboard_failure, make_temp_dir
from verl_musa.cluster.logs import tail
from verl_musa.cluster.node import NodeSpec, endpoint, object_store_bytes
from verl_musa.cluster.node_state import NodeState, NodeStates
from verl_musa.cluster.processes import TAG, title_of
from verl_musa.errors import HostError

LOOK_S = 0.5
STARTED = re.compile(r"Ray runtime started")
TRIES = 3
_CRASHED = re.compile(r"Check failed: .*")
Stop = Callable[[Mapping[str, Any], NodeStates], dict[str, Any]]


class RayletDiedError(HostError):
    """The raylet ended while it started. A Ray that waits 15 s for its own processes does so on a loaded host; trying again helps."""


def start(request: Mapping[str, Any], states: NodeStates, stop: Stop) -> dict[str, Any]:
    """Start this host's Ray, or say that it is up already.

    Raises:
        HostError: another Ray is in the way, or it did not come up within its bound; then nothing of it is left.
    """
    spec = NodeSpec.from_json(request.get("node"))
    with states.locked():
        state = states.load(spec.cluster)
        if state is not None and state.alive:
            _require_same(state, spec)
            already = True
        else:
            already = False
    if already and state is not None:
        _wait(spec, state, states.log(spec.cluster))
    else:
        state = _start_anew(spec, state, states, stop)
    return {"state": "up", "already": already, "pid": state.pid, "temp_dir": state.temp_dir, "session": str(state.session or "")}  # fmt: skip


def _start_anew(spec: NodeSpec, left: NodeState | None, states: NodeStates, stop: Stop) -> NodeState:
    """Start Ray; again where its raylet died of a loaded host.

    Raises:
        HostError: it did not come up; nothing of it is left.
    """
    if left is not None:
        stop({"cluster": spec.cluster}, states)  # what an earlier start, or a killed Ray, left
    deadline = time.monotonic() + spec.wait_s
    for more in range(TRIES - 1, -1, -1):
        with states.locked():
            _refuse_strangers(spec, states)
            state = _launch(spec, states)
        try:
            _wait(replace(spec, wait_s=deadline - time.monotonic()), state, states.log(spec.cluster))
        except RayletDiedError:
            stop({"cluster": spec.cluster}, states)
            if not more or time.monotonic() > deadline:
                raise
        except HostError:
            stop({"cluster": spec.cluster}, states)
            raise
        else:
            return state
    raise AssertionError("the last try returns or raises")


def _require_same(state: NodeState, spec: NodeSpec) -> None:
    asked = (spec.address, spec.head, spec.port_numbers(), spec.num_gpus)
    if (state.address, state.head, state.ports, state.num_gpus) != asked:
        raise HostError(
            f"cluster {spec.cluster} is up on this host with other sizes or ports",
            found=f"{state.address}, {state.num_gpus} devices, ports {sorted(state.ports.values())}",
            expected=f"{spec.address}, {spec.num_gpus} devices, ports {sorted(spec.port_numbers().values())}",
            fix=f"take it down first: verl-musa cluster down {spec.cluster}",
        )


def _refuse_strangers(spec: NodeSpec, states: NodeStates) -> None:
    """Refuse where one of the ports is in use, naming who has it.

    Raises:
        HostError: with the other cluster's id and owner, or the process that listens.
    """
    wanted = spec.port_numbers()
    for other in states.all():
        if other.cluster != spec.cluster and other.alive and set(other.ports.values()) & set(wanted.values()):
            raise HostError(
                f"cluster {other.cluster} of {other.owner} is up on this host",
                found=f"its Ray (process {other.pid}) on ports {sorted(other.ports.values())}",
                expected="no other Ray on these ports",
                fix=f"wait for its end; if it is yours and stale: verl-musa cluster down {other.cluster}",
            )
    for option, port in wanted.items():
        if not port_is_free(port):
            raise HostError(
                f"port {port} ({option}) is taken",
                found=_who_listens(port),
                expected="a free port",
                fix="end that program if it is yours, or choose other ports: `ray:` in site.yaml",
            )


def _who_listens(port: int) -> str:
    """The process that listens on a port, as far as this user may see."""
    try:
        found = [
            c
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
        ]
    except psutil.AccessDenied:
        found = []
    pid = next((connection.pid for connection in found if connection.pid), None)
    if pid is None:
        return "a program of another user listens there"
    try:
        process = psutil.Process(pid)
        title, owner = title_of(process)[:120], process.username()
        tag = process.environ().get(TAG) if process.is_running() else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return f"process {pid} listens there"
    run = f", which belongs to run {tag}" if tag else ""
    return f"process {pid} of {owner} ({title}){run}"


def _launch(spec: NodeSpec, states: NodeStates) -> NodeState:
    temp_dir = make_temp_dir()
    state = NodeState(
        cluster=spec.cluster,
        owner=spec.owner,
        host=spec.host,
        address=spec.address,
        head=spec.head,
        temp_dir=str(temp_dir),
        ports=spec.port_numbers(),
        num_gpus=spec.num_gpus,
        created=time.time(),
        logs=spec.logs,
    )
    states.save(state)  # before it is started: a stop finds its processes whatever happens here
    with states.log(spec.cluster).open("wb") as log:
        process = subprocess.Popen(
            spec.command(temp_dir, object_store_bytes()),
            env=spec.environment(),
            cwd=temp_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it outlives this agent and the connection that brought it here
        )
    state.pid, state.started = process.pid, psutil.Process(process.pid).create_time()
    states.save(state)
    return state


def _wait(spec: NodeSpec, state: NodeState, log: Path) -> None:
    """Wait until this host's Ray is up.

    Raises:
        HostError: it ended, its dashboard died, or the bound ran out.
    """
    deadline = time.monotonic() + spec.wait_s
    seen = ""
    while time.monotonic() < deadline:
        if not state.alive:
            raise _failure(spec, "Ray ended while it started", log)
        if (said := dashboard_failure(state.session)) is not None:
            raise _failure(spec, f"Ray's dashboard died at its start: {said}", log)
        if (said := _raylet_failure(state)) is not None:
            raise RayletDiedError(f"Ray's raylet died at its start: {said}", found=tail(log, 6),
                                  fix="the host is too loaded, or its ports or addresses are wrong: see raylet.out")  # fmt: skip
        if STARTED.search(tail(log, 200)):
            seen = _dashboard(spec) if spec.head else ""
            if not seen:
                return
        time.sleep(LOOK_S)
    what = (
        f"its dashboard does not answer: {seen}"
        if seen
        else "it does not reach the head"
        if not spec.head
        else "still starting"
    )
    raise _failure(spec, f"Ray was not up within {spec.wait_s:.0f} s: {what}", log)


def _raylet_failure(state: NodeState) -> str | None:
    """What a raylet that crashed said; ``ray start`` goes on waiting for it."""
    session = state.session
    text = tail(session / "logs" / "raylet.err", 60) if session else ""
    found = _CRASHED.search(text)
    return found.group()[:300] if found else None


def _dashboard(spec: NodeSpec) -> str:
    """Why the head's dashboard does not answer yet; empty where it does."""
    host = spec.address if ipaddress.ip_address(spec.dashboard_host).is_unspecified else spec.dashboard_host
    url = f"http://{endpoint(host, spec.ports.dashboard)}/api/version"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows this address
    try:
        with opener.open(url, timeout=5.0) as answer:
            return "" if "ray_version" in json.loads(answer.read(65536)) else "it answers something else"
    except (OSError, ValueError, urllib.error.URLError) as error:
        return str(error)


def _failure(spec: NodeSpec, message: str, log: Path) -> HostError:
    said = tail(log, 12)
    address = spec.head_address
    return HostError(
        message,
        found="\n" + said if said else None,
        expected=f"`ray start` of {'the head' if spec.head else 'a worker'} at {spec.address}, head {address}, ports {sorted(spec.port_numbers().values())}",
        fix="read the lines above; on a loaded host, try again"
        if spec.head
        else f"check that this host reaches {address} and that no firewall is in between (verl-musa preflight)",
    )
