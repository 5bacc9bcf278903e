"""What runs on a host for a run: ``python -m verl_musa.cluster.agent VERB`` with JSON on standard input.

Nothing that may be secret stands on a command line. The answer is one line of JSON on standard output behind ``MARK``; a
shell that greets people does no harm. It starts and ends only what it started itself, by recorded process ids.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from verl_musa.cluster.agent_start import start
from verl_musa.cluster.deaths import ENGINE_TITLES, LAST_LINES, LONGEST_TITLE, driver_log, worker_log
from verl_musa.cluster.logs import keep_logs, tail
from verl_musa.cluster.node import CLUSTER_ID
from verl_musa.cluster.node_state import NodeState, NodeStates
from verl_musa.cluster.processes import OwnedProcesses, remove_shared_memory, title_of
from verl_musa.errors import HostError, ImageError, VerlMusaError

MARK = "verl-musa-agent: "
TERM_S = 8.0
KILL_S = 30.0
MOST_LINES = 10_000
LARGEST_REQUEST = 4 * 1024**2

Request = Mapping[str, Any]
Answer = dict[str, Any]


def facts(request: Request, states: NodeStates) -> Answer:
    """What the host is: its addresses by interface, its clock, CPUs, memory, and what runs the agent.

    ``named``: the addresses that the name has here under which ssh reached it.
    """
    addresses = {
        name: [entry.address.partition("%")[0] for entry in entries if entry.family in {socket.AF_INET, socket.AF_INET6}]
        for name, entries in psutil.net_if_addrs().items()
    }  # fmt: skip
    return {
        "hostname": platform.node(),
        "addresses": addresses,
        "connected_by": [*os.environ.get("SSH_CONNECTION", "").split()[2:3]],
        "named": _resolved(str(request.get("name", ""))),
        "cpus": os.cpu_count() or 1,
        "memory": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "verl_musa": _version("verl-musa"),
        "ray": _version("ray"),
        "clusters": [_short(state) for state in states.all()],
        **_clock(),
    }


def _resolved(name: str) -> list[str]:
    if not name:
        return []
    with suppress(OSError, UnicodeError):
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _clock() -> Answer:
    return {"time": time.time(), "utc_offset_s": time.localtime().tm_gmtoff, "boot": psutil.boot_time()}


def _short(state: NodeState) -> Answer:
    return {"cluster": state.cluster, "owner": state.owner, "host": state.host, "head": state.head, "alive": state.alive,
            "num_gpus": state.num_gpus, "port": state.ports.get("port")}  # fmt: skip


def _own(request: Request, states: NodeStates) -> NodeState | None:
    cluster = str(request["cluster"])
    if CLUSTER_ID.fullmatch(cluster) is None:
        raise HostError("that is no id of a cluster", found=ascii(cluster[:100]))
    return states.load(cluster)


def status(request: Request, states: NodeStates) -> Answer:
    """Whether this host's Ray runs, its processes, which of them stand still, and which engine processes have gone."""
    state = _own(request, states)
    if state is None:
        return {"state": "none", "clusters": [_short(other) for other in states.all()], **_clock()}
    owned = _owned(state)
    processes = owned.refresh()
    _look_at_engines(state, processes)
    with suppress(psutil.NoSuchProcess):
        state.seen = {str(process.pid): process.create_time() for process in processes}
    with states.locked():
        if states.load(state.cluster) is not None:  # not stopped meanwhile
            states.save(state)
    ended = None if state.alive else _said_at_the_end(state)
    return {
        "state": "up" if state.alive else "ended",
        "ended": ended,
        "pid": state.pid,
        "address": state.address,
        "num_gpus": state.num_gpus,
        "owner": state.owner,
        "processes": len(processes),
        "session": str(state.session or ""),
        "engines_gone": [{"pid": int(pid), **engine} for pid, engine in state.engines.items() if engine["gone"]],
        "stopped": _stopped(processes),
        **_clock(),
    }  # fmt: skip


def _stopped(processes: list[psutil.Process]) -> list[Answer]:
    """The processes that were told to stand still: their connections stay open, so that nothing else tells."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}:
                found.append({"pid": process.pid, "title": title_of(process)[:LONGEST_TITLE]})
    return found


def _owned(state: NodeState) -> OwnedProcesses:
    owned = OwnedProcesses(state.cluster, state.host)
    owned.remember({int(pid): when for pid, when in state.seen.items()})
    owned.remember({state.pid: state.started})
    return owned


def _look_at_engines(state: NodeState, processes: list[psutil.Process]) -> None:
    """Note engine processes, which Ray knows nothing of, and when one of them was missed."""
    alive = {process.pid for process in processes}
    for process in processes:
        title = title_of(process)[:LONGEST_TITLE]
        if str(process.pid) not in state.engines and ENGINE_TITLES.match(title):
            with suppress(psutil.NoSuchProcess):
                state.engines[str(process.pid)] = {"title": title, "parent": process.ppid(), "gone": None}
    for pid, engine in state.engines.items():
        if engine["gone"] is None and int(pid) not in alive:
            engine["gone"] = time.time()


def _said_at_the_end(state: NodeState) -> str:
    session = state.session
    said = tail(session / "logs" / "ray_process_exit.log", 20) if session else ""
    return said or "it left no words: it was killed, or the host was restarted"


def logs(request: Request, states: NodeStates) -> Answer:
    """The last lines of a worker's, the driver's or any other log of the cluster's session on this host."""
    state = _own(request, states)
    session = state.session if state else None
    if session is None:
        return {"files": [], "text": ""}
    lines = min(int(request.get("lines", LAST_LINES)), MOST_LINES)
    folder = session / "logs"
    names = sorted(path.name for path in folder.glob("*") if path.is_file() and path.stat().st_size)
    if "worker" in request:
        text = worker_log(session, int(request["worker"]))
    elif "job" in request:
        text = driver_log(session, _name(request["job"]), lines)
    else:
        text = tail(folder / _name(request["name"]), lines, longest=2000) if "name" in request else ""
    return {"files": names, "text": text}


def _name(value: Any) -> str:
    """A file's name that stays in its folder."""
    text = str(value)
    if "/" in text or "\0" in text or text.startswith("."):
        raise HostError("that is no name of a log", found=ascii(text[:100]))
    return text


def stop(request: Request, states: NodeStates) -> Answer:
    """End this host's part of a cluster, keep its logs, and remove what it left. Safe to call again."""
    state = _own(request, states)
    if state is None:
        return {"state": "none", "ended": 0, "problems": []}
    owned = _owned(state)
    ended, mapped = len(owned.refresh()), owned.shared_memory()
    problems = [f"process {one} could not be ended" for one in owned.end(term_s=TERM_S, kill_s=KILL_S)]
    problems += _keep(state, states)
    temp_dir = Path(state.temp_dir)
    shutil.rmtree(temp_dir, ignore_errors=True)
    if temp_dir.exists():
        problems.append(f"{temp_dir} could not be removed")
    remove_shared_memory(mapped, owned.pids_seen, since=state.created)
    with states.locked():
        if not owned.refresh():
            states.forget(state.cluster)
    return {"state": "none", "ended": ended, "problems": problems}


def _keep(state: NodeState, states: NodeStates) -> list[str]:
    """Copy Ray's logs to where the run keeps them."""
    if state.logs is None:
        return []
    into, problems = Path(state.logs), []
    try:
        into.mkdir(parents=True, exist_ok=True)
        for session in Path(state.temp_dir).glob("session_[0-9]*"):
            problems += [f"log {name} was shortened" for name in keep_logs(session / "logs", into)]
        if states.log(state.cluster).is_file():
            shutil.copyfile(states.log(state.cluster), into / "ray-start.log")
    except OSError as error:
        problems.append(f"logs could not be kept: {error}")
    return problems


def software(request: Request, states: NodeStates) -> Answer:
    """What a job with the given extras would run in on this host, and whether somebody has changed its image; ``brief``: only that."""
    from verl_musa.image.current import image_with, require_untouched, run_provenance
    from verl_musa.patching import load_series

    del states
    changed = {}
    try:
        require_untouched()
    except ImageError as error:
        changed = {"where": str(error.where), "found": str(error.found)}
    if request.get("brief"):
        return {"changed": changed}
    return {
        "image": image_with([str(name) for name in request["extras"]]),
        "series": load_series().digest,
        "provenance": dict(run_provenance().facts),
        "changed": changed,
    }


VERBS: dict[str, Callable[[Request, NodeStates], Answer]] = {
    "facts": facts,
    "start": lambda request, states: start(request, states, stop),
    "status": status,
    "logs": logs,
    "stop": stop,
    "software": software,
}


def serve(verb: str, text: str, states: NodeStates | None = None) -> Answer:
    """Answer one request; what goes wrong is part of the answer, under ``error``."""
    try:
        request = json.loads(text or "{}")
        if not isinstance(request, dict) or verb not in VERBS:
            raise HostError("the agent does not understand what it is asked", found=ascii(verb[:40]),
                            expected=" or ".join(VERBS), fix="install the same verl-musa on all hosts")  # fmt: skip
        return VERBS[verb](request, states or NodeStates())
    except VerlMusaError as error:
        return {
            "error": {
                "message": error.message,
                "found": error.found,
                "expected": error.expected,
                "fix": error.fix,
            }
        }
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError, psutil.Error) as error:
        return {"error": {"message": f"the agent failed: {type(error).__name__}: {error}"[:500]}}


def main(argv: list[str] | None = None) -> int:
    """Answer the request on standard input."""
    arguments = sys.argv[1:] if argv is None else argv
    answer = serve(arguments[0] if arguments else "", sys.stdin.read(LARGEST_REQUEST))
    sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()
    return 2 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
