"""Part of the probe: the host itself, its limits, and what its Python holds. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import functools
import glob
import json
import os
import platform
import re
import resource
import socket
import subprocess
import time
from typing import Any

from verl_musa.cluster.preflight.probe import command_of, each_within, read_number, read_text

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy")
VARIABLE = re.compile(
    r"^(RAY_|MCCL_|NCCL_|GLOO_|MUSA_|MTHREADS_|VERL_|SGLANG_|TORCH_|MASTER_|OMP_NUM_THREADS|PYTHONPATH|LD_LIBRARY_PATH)"
)
SECRET = re.compile(r"(token|secret|passw|credential|key)", re.IGNORECASE)
USERINFO = re.compile(r"//[^/@]*@")
MIB = 1024**2
UNLIMITED = 1 << 60
"""Version 1 of control groups writes a huge number where there is no limit."""


def host_part(parameters: dict[str, Any]) -> dict[str, Any]:
    """Facts of the host; ``parameters["folders"]`` are looked at for free space."""
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "uid": os.getuid(),
        "utc_offset_s": time.localtime().tm_gmtoff,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": host_memory(),
        "limits": host_limits(),
        "pids": host_pids(),
        "space": each_within(
            5,
            {name: functools.partial(folder_space, path) for name, path in host_folders(parameters).items()},
        ),
        "environment": host_environment(),
    }


def host_folders(parameters: dict[str, Any]) -> dict[str, str]:
    """Name -> folder of those whose space is looked at."""
    # Not tempfile's choice: it goes elsewhere where nothing can be written, which is what is looked for.
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    return {**parameters.get("folders", {}), "temporary": temporary, "shm": "/dev/shm"}  # noqa: S108


def folder_space(path: str) -> dict[str, Any]:
    """Free space of the file system of ``path``, or of its nearest folder that is there."""
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    seen = os.statvfs(path)
    return {
        "path": path,
        "free_mib": seen.f_bavail * seen.f_frsize // MIB,
        "total_mib": seen.f_blocks * seen.f_frsize // MIB,
        "inodes_free": seen.f_favail,
        "inodes": seen.f_files,
        "writable": os.access(path, os.W_OK),
    }


def group_folders(controller: str) -> list[str]:
    """The control groups around this process, the innermost first, in version 2 of the kernel's interface or in version 1."""
    text = read_text("/proc/self/cgroup") or ""
    found = []
    for pattern, root in (
        (r"^0::(/.*)$", "/sys/fs/cgroup"),
        (rf"^\d+:(?:\S*,)?{controller}(?:,\S*)?:(/.*)$", f"/sys/fs/cgroup/{controller}"),
    ):
        match = re.search(pattern, text, re.MULTILINE)
        folder = root + (match.group(1).rstrip("/") if match else "")
        while folder.startswith(root):
            found.append(folder)
            folder = os.path.dirname(folder)
    return found


def host_memory() -> dict[str, int | None]:
    """MiB that a new job may take: what the kernel calls available, and what the control groups leave."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read_text("/proc/meminfo") or "", re.MULTILINE)
    left: int | None = None
    for folder in group_folders("memory"):
        for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = (read_number(f"{folder}/{name}") for name in names)
            if limit is not None and used is not None and limit < UNLIMITED:
                room = max(0, limit - used) // MIB
                left = room if left is None else min(left, room)
    return {"available": int(match.group(1)) // 1024 if match else None, "group_left": left}


def host_limits() -> dict[str, list[int]]:
    """Soft and hard limit each; -1 where there is none."""
    kinds = {
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
        "memlock": resource.RLIMIT_MEMLOCK,
    }
    return {name: [number if number != resource.RLIM_INFINITY else -1 for number in resource.getrlimit(kind)]
            for name, kind in kinds.items()}  # fmt: skip


def host_pids() -> dict[str, Any]:
    """The control group around this process that leaves the fewest processes, its limit, and how many it counts now."""
    found: dict[str, Any] = {"max": None, "current": None, "file": None}
    for folder in group_folders("pids"):
        most = read_number(f"{folder}/pids.max")
        if most is not None and (found["max"] is None or most < found["max"]):
            found.update(max=most, current=read_number(f"{folder}/pids.current"), file=f"{folder}/pids.max")
    return found


def host_environment() -> dict[str, str]:
    """What a process that ssh starts there inherits of variables that change a job; secrets masked."""
    found = {}
    for name, value in os.environ.items():
        if name.lower() in PROXIES or VARIABLE.match(name):
            found[name] = "***" if SECRET.search(name) else USERINFO.sub("//***@", value)
    return found


def site_part(parameters: dict[str, Any]) -> dict[str, Any]:
    """What the job's own Python says, asked in a process of its own: ``parameters["python"]`` runs ``parameters["asked"]``."""
    python = parameters["python"]
    try:
        done = subprocess.run(
            [python, "-c", parameters["asked"]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=parameters["seconds"] - 1,
            check=False,
        )
    except OSError as error:
        return {"missing": f"{python}: {error.strerror}"}
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{python} did not answer within {error.timeout:.0f} s") from None
    lines = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return {
            "missing": f"{python} ended with code {done.returncode}: {said[-1][:300] if said else 'no answer'}"
        }
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def device_part(_: dict[str, Any]) -> dict[str, Any]:
    """Who holds the driver's device files, as far as this user may see."""
    nodes = sorted(glob.glob("/dev/mtgpu*"))
    holders = []
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()) if nodes else []):
        links = []
        for link in glob.glob(f"/proc/{pid}/fd/*"):
            try:
                links.append(os.readlink(link))
            except OSError:
                continue  # it ended, or is somebody else's
        held = sorted({target for target in links if target.startswith("/dev/mtgpu")})
        if held:
            holders.append({"pid": pid, "command": command_of(pid), "nodes": held})
    return {"nodes": nodes, "holders": holders}
