"""Checks of each host by itself: ssh, clock, memory, space and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verl_musa.checks import Finding, fail, ok, unknown, warn
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.program import read_answer
from verl_musa.cluster.preflight.view import HostCheck, MissingFactError, View
from verl_musa.cluster.ssh import Done

GIB_IN_MIB = 1024
LEAST_INODES = 100_000
"""Files of a Ray session, of compiled kernels and of a checkpoint, with room to spare."""

_SSH = (
    ("Permission denied", "the key is not accepted: check ssh.user and ssh.key of the site, and authorized_keys of the host"),
    ("Host key verification failed", "log in once by hand and confirm the host's key, or set ssh.known_hosts in the site"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "another host answers at this address, or it was set up anew: check, then ssh-keygen -R"),
    ("Could not resolve hostname", "give the host an address in the site, or correct its name"),
    ("No route to host", "check that the host is up and that its address is right"),
    ("Network is unreachable", "check the address of the host and this machine's routes"),
    ("Connection refused", "sshd does not listen there: start it, or correct ssh.port"),
    ("Connection timed out", "nothing answers: check that the host is up, and that no firewall drops the port of ssh"),
    ("No such container", "start the container, or correct `container` in the site"),
    ("is not running", "start the container"),
    ("no such user", "correct ssh.user in the site"),
    ("UNPROTECTED PRIVATE KEY", "chmod 600 the key file"),
)  # fmt: skip
_NO_PYTHON = 127


def ssh_finding(host: Host, done: Done) -> Finding:
    """How the first ssh to a host went."""
    if read_answer(done.stdout) is not None:
        return ok(f"{host.address} in {done.seconds:.1f} s")
    said = done.stderr
    for text, fix in _SSH:
        if text.lower() in said.lower():
            return fail(f"{host.address}: {done.why()}", fix)
    if done.code is None:
        return fail(
            f"{host.address}: {done.why()}",
            "the host hangs or is overloaded: log in by hand and look at its load",
        )
    if done.code == _NO_PYTHON:
        return fail(
            f"{host.address}: {done.why()}",
            "install python3 where ssh arrives, or correct `container` in the site",
        )
    if done.ok:
        return fail(
            f"{host.address}: the probe gave no answer",
            "see whether `ssh HOST python3 -V` works without a question",
        )
    return fail(f"{host.address}: {done.why()}", "see whether `ssh HOST true` works without a question")


def _ssh(view: View, host: Host) -> Finding:
    return ssh_finding(host, view.done[host.name])


def _count(view: View, host: Host) -> Finding | None:
    if view.resolved is None or not host.head:
        return None
    count, wanted = len(view.hosts), view.resolved.recipe.cluster.nodes
    if count < wanted:
        return fail(
            f"{count} hosts, the recipe wants {wanted}",
            "name more hosts in the site or with --hosts, or choose a variant for fewer",
        )
    if count > wanted:
        return warn(
            f"{count} hosts, the recipe uses {wanted}",
            "name only as many with --hosts, or choose a variant for more",
        )
    return ok(f"{count} hosts")


def _clock(view: View, host: Host) -> Finding | None:
    if host.head:
        return None
    clock = view.clocks.get(host.name)
    if clock is None:
        raise MissingFactError("not known: the head's clock was not read")
    limit = view.site.limits.clock_seconds
    seen = f"{clock.ahead:+.1f} s against {view.head.name}'s (within {clock.within:.2f} s)"
    fix = "run chrony or another NTP client on all hosts"
    if abs(clock.ahead) - clock.within > limit:
        return fail(f"{seen}, at most {limit:g} s are allowed", fix)
    if abs(clock.ahead) + clock.within > limit and clock.within > limit:
        return unknown(seen, "the connection is too slow to tell; try again when the host is less busy")
    return ok(seen)


def _memory(view: View, host: Host) -> Finding | None:
    if view.resolved is None:
        return None
    needed = view.resolved.recipe.cluster.host_memory_gib
    memory = view.part(host, "host")["memory_mib"]
    known = [value for value in (memory["available"], memory["group_left"]) if value is not None]
    if not known:
        raise MissingFactError("not known: the kernel does not say")
    free = min(known) / GIB_IN_MIB
    if free < needed:
        return fail(
            f"{free:.1f} GiB free, the recipe needs {needed:g}",
            "end other work there, or raise the container's memory limit",
        )
    return ok(f"{free:.1f} GiB free")


def _cpus(view: View, host: Host) -> Finding | None:
    if view.resolved is None:
        return None
    count, wanted = view.part(host, "host")["cpus"], view.resolved.recipe.cluster.cpus_per_node
    if count < wanted and not view.simulated:
        return warn(
            f"{count} usable, the recipe hands out {wanted}",
            "give the container more CPUs, or expect a slower run",
        )
    return ok(f"{count} usable, Ray hands out {wanted}")


def _space(view: View, host: Host) -> Finding:
    least = view.site.limits.free_gib * GIB_IN_MIB
    return _spaces(view, host, "free_mib", least=least, shown=lambda value: f"{value / GIB_IN_MIB:.1f} GiB")


def _inodes(view: View, host: Host) -> Finding:
    return _spaces(view, host, "inodes_free", least=LEAST_INODES, shown=lambda value: f"{value:,.0f} inodes")


def _spaces(view: View, host: Host, key: str, *, least: float, shown: Callable[[float], str]) -> Finding:
    space: Mapping[str, Any] = view.part(host, "host")["space"]
    seen, short = [], []
    for name in ("temporary", "shared"):
        if name not in space:
            continue
        if "error" in space[name]:
            return fail(
                f"{name} folder: {space[name]['error']}",
                "see whether the mount hangs (stat -f), and mount it again",
            )
        value = space[name]["value"]
        uncounted = key == "inodes_free" and not value["inodes"]  # such as btrfs
        seen.append(f"{value['path']} {'not counted' if uncounted else shown(value[key])}")
        if value[key] < least and not uncounted:
            short.append(value["path"])
    if short:
        return fail(
            f"{', '.join(seen)} free, at least {shown(least)} needed", f"make room in {' and '.join(short)}"
        )
    return ok(f"{', '.join(seen)} free")


def _shm(view: View, host: Host) -> Finding:
    said = view.part(host, "host")["space"]["shm"]
    if "error" in said:
        return fail(f"it cannot be read: {said['error']}", "mount a tmpfs at /dev/shm")
    free, least = said["value"]["free_mib"] / GIB_IN_MIB, view.site.limits.shm_gib
    if free < least:
        return fail(
            f"{free:.2f} GiB free, at least {least:g} needed",
            "start the container with a larger --shm-size, or remove stale files",
        )
    return ok(f"{free:.1f} GiB free")


def _limit(view: View, host: Host, name: str, least: float, unit: float = 1) -> Finding:
    soft, hard = (value if value < 0 else value / unit for value in view.part(host, "host")["limits"][name])
    shown = "unlimited" if soft < 0 else f"{soft:,.0f}" if unit == 1 else f"{soft:.1f} GiB"
    wanted = "unlimited" if least == float("inf") else f"{least:,.0f}" if unit == 1 else f"{least:g} GiB"
    fix = f"raise it: --ulimit {name}=… of the container, or /etc/security/limits.d on the host"
    if soft < 0 or soft >= least:
        return ok(shown)
    if hard < 0 or hard >= least:
        return warn(f"{shown}, at least {wanted} needed; the hard limit would do", fix)
    return fail(f"{shown}, at least {wanted} needed", fix)


def _nofile(view: View, host: Host) -> Finding:
    return _limit(view, host, "nofile", view.site.limits.nofile)


def _nproc(view: View, host: Host) -> Finding:
    return _limit(view, host, "nproc", view.site.limits.nproc)


def _memlock(view: View, host: Host) -> Finding | None:
    least = view.site.limits.memlock_gib
    if least is None:
        network = None if view.resolved is None else view.resolved.recipe.network
        if network is None or network.profile != "roce":
            return None
        least = float("inf")
    return _limit(view, host, "memlock", least, 1024**3)


def _pids(view: View, host: Host) -> Finding:
    pids, least = view.part(host, "host")["pids"], view.site.limits.nproc
    if pids["max"] is None:
        return ok("no limit")
    if pids["max"] - (pids["current"] or 0) < least:
        return fail(f"{pids['file']} is {pids['max']:,}, {pids['current'] or 0:,} in use; {least:,} needed",
                    "start the container with --pids-limit -1")  # fmt: skip
    return ok(f"{pids['max']:,}")


SSH = HostCheck("host.ssh", "ssh, without a question", _ssh)
CHECKS = (
    HostCheck("host.count", "number of hosts against the recipe", _count),
    HostCheck("host.clock", "clock against the head's", _clock),
    HostCheck("host.memory", "free memory", _memory),
    HostCheck("host.cpus", "usable CPUs", _cpus),
    HostCheck("host.space", "free space of temporary and shared folder", _space),
    HostCheck("host.inodes", "free inodes of both", _inodes),
    HostCheck("host.shm", "free shared memory", _shm),
    HostCheck("host.nofile", "limit of open files", _nofile),
    HostCheck("host.nproc", "limit of processes", _nproc),
    HostCheck("host.memlock", "limit of locked memory", _memlock),
    HostCheck("host.pids", "process limit of the control group", _pids),
)
