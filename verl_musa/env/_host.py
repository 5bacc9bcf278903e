"""The host: operating system, CPUs, memory and limits."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
from pathlib import Path

import psutil

from verl_musa.env.report import Fact

VARIABLES = (
    "MUSA_HOME",
    "MUSA_VISIBLE_DEVICES",
    "MTHREADS_VISIBLE_DEVICES",
    "VERL_PLATFORM",
    "PYTORCH_MUSA_ALLOC_CONF",
    "MCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
)
"""Environment variables that change what a job does on this host. Values of others are never shown."""

_LIMITS = (
    ("open files", resource.RLIMIT_NOFILE, 1),
    ("processes", resource.RLIMIT_NPROC, 1),
    ("locked memory", resource.RLIMIT_MEMLOCK, 2**20),
)


def host_facts(root: Path = Path("/")) -> list[Fact]:
    """Facts of this host; ``root`` is where /proc and /sys are read."""
    memory = psutil.virtual_memory()
    return [
        Fact(name="os", value=_os_name(), source="os-release"),
        Fact(name="kernel", value=platform.release(), source="uname"),
        Fact(name="machine", value=platform.machine(), source="uname"),
        _cpu_model(root),
        Fact(
            name="cpus",
            value=f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
            source="sched_getaffinity",
        ),
        _cpu_quota(root),
        Fact(
            name="memory",
            value=f"{memory.available / 2**30:.1f} GiB available of {memory.total / 2**30:.1f} GiB",
            source="psutil",
        ),
        _memory_limit(root),
        _shared_memory(root),
        *(_limit(*limit) for limit in _LIMITS),
        *(_variable(name) for name in VARIABLES),
    ]


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def _cpu_model(root: Path) -> Fact:
    file = root / "proc/cpuinfo"
    match = re.search(r"^model name\s*:\s*(.+)$", _read(file) or "", re.MULTILINE)
    if match:
        return Fact(name="cpu model", value=match.group(1), source=str(file))
    return Fact(name="cpu model", value=None, source=str(file), why="not named there")


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _cpu_quota(root: Path) -> Fact:
    """CPUs that this container's cgroup (version 2) allows."""
    file = root / "sys/fs/cgroup/cpu.max"
    text = _read(file)
    parts = (text or "").split()
    if len(parts) != 2:  # noqa: PLR2004  (quota and period)
        return Fact(
            name="cpu quota", value=None, source=str(file), why="no cgroup v2 limit file", absent=True
        )
    quota, period = parts
    value = "none" if quota == "max" else f"{int(quota) / int(period):.2f} CPUs"
    return Fact(name="cpu quota", value=value, source=str(file))


def _memory_limit(root: Path) -> Fact:
    file = root / "sys/fs/cgroup/memory.max"
    text = _read(file)
    if not text:
        return Fact(
            name="memory limit",
            value=None,
            source=str(file),
            why="no cgroup v2 limit file",
            absent=True,
        )
    return Fact(
        name="memory limit",
        value="none" if text == "max" else f"{int(text) / 2**30:.1f} GiB",
        source=str(file),
    )


def _shared_memory(root: Path) -> Fact:
    folder = root / "dev/shm"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Fact(name="shared memory", value=None, source=str(folder), why=error.strerror or str(error))
    value = f"{usage.free / 2**30:.1f} GiB free of {usage.total / 2**30:.1f} GiB"
    return Fact(name="shared memory", value=value, source="statvfs")


def _limit(name: str, which: int, unit: int) -> Fact:
    soft, hard = resource.getrlimit(which)

    def shown(value: int) -> str:
        return (
            "unlimited" if value == resource.RLIM_INFINITY else f"{value // unit}{' MiB' if unit > 1 else ''}"
        )

    return Fact(name=f"limit: {name}", value=f"{shown(soft)} (hard {shown(hard)})", source="getrlimit")


def _variable(name: str) -> Fact:
    value = os.environ.get(name)
    return Fact(
        name=f"${name}",
        value=value,
        source="environment",
        why="" if value is not None else "not set",
        absent=value is None,
    )
