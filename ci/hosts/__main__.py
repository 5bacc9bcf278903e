"""Hosts for people: up, look, down.

    python -m ci.hosts up [--count N] [--image REF | --stack] [--kind docker|netns] [--docker-host ADDRESS] [--folder DIR]
    python -m ci.hosts status [--folder DIR]
    python -m ci.hosts down [--folder DIR]

``up`` leaves one process behind that holds everything; ``down`` ends it, and it ends everything else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from ci.engine import NoEngineError
from ci.hosts.model import Host, Hosts, NoHostsError, Shape
from ci.hosts.stack import with_stack
from ci.hosts.up import up

ROOT = Path(__file__).resolve().parents[2]
UP_LIMIT_S = 900.0
DOWN_LIMIT_S = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ci.hosts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("up", "status", "down", "hold"))
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--image", help="reference in the engine; default: the light base")
    parser.add_argument(
        "--stack",
        action="store_true",
        help="this Python, all that is installed beside it and this checkout in every host",
    )
    parser.add_argument("--kind", choices=("docker", "netns"))
    parser.add_argument(
        "--docker-host", help="address of an engine that runs; default: DOCKER_HOST, else one of our own"
    )
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--shm", default="256m")
    parser.add_argument(
        "--shared", type=Path, help="folder of this machine behind /mnt/shared; default: a new one"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "verl-musa-hosts-up")
    given = parser.parse_args(arguments)
    folder: Path = given.folder.resolve()
    if given.command == "hold":
        return _hold(given, folder)
    if given.command == "up":
        return _up(folder, sys.argv[2:] if arguments is None else arguments[1:])
    return _status(folder) if given.command == "status" else _down(folder)


def _up(folder: Path, options: list[str]) -> int:
    state = _state(folder)
    if state is not None:
        print(f"hosts are up already: {folder}", file=sys.stderr)
        _show(state)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").unlink(missing_ok=True)
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ci.hosts", "hold", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=ROOT,
        )
    deadline = time.monotonic() + UP_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        state = _state(folder)
        if state is not None:
            _show(state)
            return 0
        time.sleep(0.2)
    if process.poll() is None:
        process.terminate()
    print((folder / "log.txt").read_text(errors="replace")[-2000:], file=sys.stderr)
    return 1


def _hold(given: argparse.Namespace, folder: Path) -> int:
    """Bring the hosts up and stay until told to end."""
    signal.signal(signal.SIGTERM, _leave)
    shape = Shape(
        count=given.count, image=given.image, memory=given.memory, shm=given.shm, shared=given.shared
    )
    shape = with_stack(shape) if given.stack else shape
    try:
        with up(shape, kind=given.kind, docker_host=given.docker_host, folder=folder) as hosts:
            state = folder / "state.json"
            unfinished = state.with_suffix(".part")
            unfinished.write_text(json.dumps(_facts(hosts), indent=2), encoding="utf-8")
            unfinished.rename(state)
            try:
                while True:
                    signal.pause()
            finally:
                state.unlink(missing_ok=True)
    except (NoHostsError, NoEngineError) as error:
        print(f"no hosts: {error}", file=sys.stderr)
        return 1


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit(0)


def _facts(hosts: Hosts) -> dict[str, Any]:
    return {
        "holder": os.getpid(),
        "kind": hosts.backend.kind,
        "seconds": round(hosts.seconds, 1),
        "folder": str(hosts.folder),
        "shared": str(hosts.shared),
        "networks": {which: str(network.subnet) for which, network in hosts.networks.items()},
        "hosts": [_host(host) for host in hosts.hosts],
    }


def _host(host: Host) -> dict[str, Any]:
    """What of a host is data."""
    names = ("name", "management", "training", "management6", "training6")
    return {name: getattr(host, name) for name in names} | {
        "enter": host.backend.command(host.name, ["bash"])
    }


def _state(folder: Path) -> dict[str, Any] | None:
    """What is up, if its holder lives."""
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        command = Path(f"/proc/{state['holder']}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, KeyError):
        return None
    return state if b"ci.hosts" in command and b"hold" in command else None


def _status(folder: Path) -> int:
    state = _state(folder)
    if state is None:
        print(f"no hosts are up in {folder}")
        return 1
    _show(state)
    return 0


def _show(state: dict[str, Any]) -> None:
    folder = state["folder"]
    print(
        f"{len(state['hosts'])} hosts ({state['kind']}), up in {state['seconds']} s; {state['shared']} is their /mnt/shared"
    )
    for host in state["hosts"]:
        print(
            f"  {host['name']}  management {host['management']}  training {host['training']}  {host['training6']}"
        )
    print(f"ssh:        ssh -F {folder}/ssh_config host1")
    print(f"without it: {' '.join(state['hosts'][0]['enter'])}")
    print(f"hostfile:   {folder}/hostfile")
    print(f"site.yaml:  {folder}/site.yaml")
    print((Path(folder) / "site.yaml").read_text(encoding="utf-8"), end="")


def _down(folder: Path) -> int:
    state = _state(folder)
    if state is None:
        print(f"no hosts are up in {folder}")
        return 0
    holder = int(state["holder"])
    os.kill(holder, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(holder, os.WNOHANG)
        if not Path(f"/proc/{holder}").exists():
            print("down")
            return 0
        time.sleep(0.2)
    print(f"process {holder} does not end within {DOWN_LIMIT_S:.0f} s; see {folder}/log.txt", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
