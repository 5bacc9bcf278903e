"""Checks of the devices: how many, how much memory is free, who uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_musa.checks import Finding, fail, ok, unknown, warn
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.check_version import said_nothing
from verl_musa.cluster.preflight.view import HostCheck, View

SIMULATOR = "musa-sim"
SIMULATED_DEVICES = "MUSA_SIM_DEVICES"
MOST_USED = 0.05
"""Share of a device's memory that may be in use before the job: the driver itself takes some hundred MiB of 80 GiB."""

HOLDERS_SHOWN = 4


def _devices(view: View, host: Host) -> Mapping[str, Any] | None:
    """What the driver's tools say; None where the job's Python could not be asked, which version.site says."""
    if said_nothing(view, host) or "own" not in view.part(host, "site"):
        return None
    devices: Mapping[str, Any] = view.part(host, "site")["own"]["env"]["devices"]
    return devices


def wanted_devices(view: View, host: Host) -> int | None:
    """Devices that the job uses on the host."""
    if view.resolved is not None:
        return view.resolved.recipe.cluster.devices_per_node
    return host.slots


def _count(view: View, host: Host) -> Finding | None:
    if view.simulated:
        return None
    devices, wanted = _devices(view, host), wanted_devices(view, host)
    if devices is None:
        return None
    if devices["list"] is None:
        return unknown(
            f"no tool says ({'; '.join(devices['notes'])})",
            "install mthreads-ml-py or mthreads-gmi where the job runs",
        )
    count = len(devices["list"])
    seen = f"{count} by {devices['source']}"
    if wanted is None:
        return ok(seen)
    if count < wanted:
        return fail(
            f"{seen}, {wanted} wanted",
            "look at mthreads-gmi and dmesg of the host, and MTHREADS_VISIBLE_DEVICES of the container",
        )
    return ok(f"{seen}, {wanted} wanted")


def _slots(view: View, host: Host) -> Finding | None:
    if view.resolved is None or host.slots is None:
        return None
    wanted = view.resolved.recipe.cluster.devices_per_node
    if host.slots < wanted:
        return fail(
            f"slots={host.slots}, the recipe uses {wanted} on each host",
            "choose other hosts, or a variant with fewer devices",
        )
    return ok(f"slots={host.slots}, {wanted} used")


def _simulated(view: View, host: Host) -> Finding | None:
    if not view.simulated or view.resolved is None or said_nothing(view, host):
        return None
    found = view.part(host, "site")
    version = found["packages"].get(SIMULATOR)
    if version is None:
        return fail(
            f"{SIMULATOR} is not installed", "use the image `sim`; the recipe's devices are simulated"
        )
    wanted, text = view.resolved.recipe.cluster.devices_per_node, view.variables().get(SIMULATED_DEVICES)
    if text is not None and text != str(wanted):
        return fail(
            f"{SIMULATED_DEVICES}={text}, but cluster.devices_per_node is {wanted}",
            "make both equal in the recipe",
        )
    return ok(f"{wanted} by {SIMULATOR} {version}")


def _memory(view: View, host: Host) -> Finding | None:
    if view.simulated:
        return None
    devices = _devices(view, host)
    listed = None if devices is None else devices["list"]
    if not listed:
        return None  # device.count says it
    used = [one for one in listed if one["memory_used_mib"] is not None and one["memory_total_mib"]]
    if not used:
        return unknown(
            f"{len(listed)} devices, none says how much of its memory is used", "look at mthreads-gmi"
        )
    busy = [one for one in used if one["memory_used_mib"] > MOST_USED * one["memory_total_mib"]]
    if busy:
        seen = ", ".join(
            f"{one['index']}: {one['memory_used_mib']} of {one['memory_total_mib']} MiB" for one in busy
        )
        return fail(f"in use already: {seen}", "end what uses them (device.holders says who)")
    return ok(f"{len(used)} devices, at most {max(one['memory_used_mib'] for one in used)} MiB used")


def _holders(view: View, host: Host) -> Finding | None:
    if view.simulated:
        return None
    found = view.part(host, "device")
    if not found["nodes"]:
        return unknown(
            "no device files /dev/mtgpu* there", "load the driver, or hand the devices to the container"
        )
    if found["holders"]:
        seen = ", ".join(f"{one['pid']} {one['command'][:60]}" for one in found["holders"][:HOLDERS_SHOWN])
        return warn(
            f"{len(found['holders'])} processes have them open: {seen}",
            "end them if they are left over from another job",
        )
    return ok(f"nobody holds {len(found['nodes'])} device files")


CHECKS = (
    HostCheck("device.count", "devices by the driver's tools", _count),
    HostCheck("device.slots", "slots of the host against the recipe", _slots),
    HostCheck("device.simulated", "the simulator and its devices", _simulated),
    HostCheck("device.memory", "device memory in use", _memory),
    HostCheck("device.holders", "processes on the devices", _holders),
)
