"""Checks of the host before anything is started on it."""

from __future__ import annotations

import platform
import socket
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import psutil

from verl_musa import extras
from verl_musa.cluster.processes import SHARED_MEMORY
from verl_musa.errors import HostError

GIB = 1024**3
USER_PORTS = range(1024, 65536)


def available_memory() -> int:
    """Bytes of memory a new job may take here: what is free, or what the control group leaves, if that is less."""
    free = psutil.virtual_memory().available
    left = _control_group_left()
    return free if left is None else min(free, left)


def _control_group_left(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    pairs = [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ]
    for limit_name, used_name in pairs:
        try:
            limit = (root / limit_name).read_text(encoding="ascii").strip()
            used = int((root / used_name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if limit.isdigit() and int(limit) < 1 << 60:  # cgroup v1 writes a huge number for "no limit"
            return max(0, int(limit) - used)
    return None


def check_memory(needed_gib: float) -> None:
    """Raise HostError when less than ``needed_gib`` GiB of memory is free."""
    free = available_memory()
    if free < needed_gib * GIB:
        raise HostError(
            "not enough free memory for this recipe",
            where=platform.node(),
            found=f"{free / GIB:.1f} GiB free",
            expected=f"at least {needed_gib:g} GiB (cluster.host_memory_gib of the recipe)",
            fix="end other work on this host, or use a host with more memory",
        )


def check_shared_memory(needed: int) -> None:
    """Raise HostError when ``/dev/shm`` has less than ``needed`` bytes left."""
    free = psutil.disk_usage(str(SHARED_MEMORY)).free
    if free < needed:
        raise HostError(
            "not enough shared memory for Ray's object store",
            where=f"{platform.node()}:{SHARED_MEMORY}",
            found=f"{free / GIB:.2f} GiB free",
            expected=f"at least {needed / GIB:.2f} GiB",
            fix="start the container with a larger --shm-size, or remove stale files there",
        )


def port_is_free(port: int) -> bool:
    """Whether a server could listen on TCP ``port`` on every interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def check_port(port: int, option: str) -> None:
    """Raise HostError when ``port``, which the user asked for by ``option``, cannot be had."""
    if port not in USER_PORTS:
        raise HostError(
            f"{option} {port} is not a port that Ray can use",
            where=platform.node(),
            found=str(port),
            expected="a number from 1024 to 65535",
            fix=f"leave {option} out: a free port is then chosen",
        )
    if not port_is_free(port):
        raise HostError(
            f"port {port} is taken",
            where=f"{platform.node()}:{port}",
            found="another program listens there",
            expected=f"a free port for {option}",
            fix=f"leave {option} out (a free port is then chosen), or end the program that listens there",
        )


def free_ports(count: int) -> list[int]:
    """``count`` different TCP ports that were free a moment ago."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def check_packages(names: Sequence[str], wanted_extras: Sequence[str] = ()) -> dict[str, str]:
    """The versions of the distributions ``names``, installed or in one of the extras; HostError names those that are missing.

    Only the installed metadata is read, nothing is imported.
    """
    versions: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        try:
            versions[name] = extras.distribution(name, wanted_extras).version
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise HostError(
            f"this Python environment lacks {', '.join(missing)}",
            where=platform.node(),
            found=f"{len(versions)} of the {len(names)} packages that the recipe needs",
            expected=", ".join(names),
            fix="run through nox (nox -s run -- RECIPE), which installs them, or inside the recipe's image",
        )
    return versions
