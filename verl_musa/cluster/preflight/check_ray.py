"""Checks of what Ray needs on each host before it is started: its ports, its head's address, and no other Ray in the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_musa.checks import Finding, fail, ok, warn
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.view import HostCheck, View, is_loopback

HEAD_ONLY = ("port", "dashboard", "client")
USUAL_GCS, USUAL_DASHBOARD = 6379, 8265
"""Ray's own defaults."""

SHOWN = 4


def _wanted(view: View, host: Host) -> dict[int, str]:
    ray = view.site.ray.model_dump()
    return {
        value: name
        for name, value in ray.items()
        if isinstance(value, int) and (host.head or name not in HEAD_ONLY)
    }


def _ports(view: View, host: Host) -> Finding:
    wanted, (low, high) = _wanted(view, host), view.site.ray.workers
    taken = [
        one for one in view.part(host, "net")["listeners"] if one["port"] in wanted and not _ours(view, one)
    ]
    if taken:
        seen = ", ".join(f"{one['port']} ({wanted[one['port']]}) by {_who(one)}" for one in taken[:SHOWN])
        return fail(
            f"taken: {seen}", "end that program if it is left over, or choose other ports: `ray` in the site"
        )
    busy = {one["port"] for one in view.part(host, "net")["listeners"] if low <= one["port"] <= high}
    span = high - low + 1
    if len(busy) > span // 2:
        return fail(
            f"{len(busy)} of the workers' ports {low}-{high} are taken",
            "choose another range: ray.workers in the site",
        )
    return ok(f"{len(wanted)} ports and {span - len(busy)} of {low}-{high} are free")


def _ours(view: View, one: Mapping[str, Any]) -> bool:
    return view.run_id is not None and one["run"] == view.run_id


def _who(one: Mapping[str, Any]) -> str:
    if one["pid"] is None:
        return f"a process of user {one['uid']}"
    run = f" of run {one['run']}" if one["run"] else ""
    return f"pid {one['pid']}{run}, {one['command'][:60]}"


def _stale(view: View, host: Host) -> Finding:
    running = [one for one in view.part(host, "net")["ray"] if not _ours(view, one)]
    main = [one for one in running if one["kind"] in {"gcs_server", "raylet"}]
    if not main:
        left = [one for one in running if one["kind"] in {"worker", "dashboard"}]
        if left:
            return warn(
                f"{len(left)} processes of a Ray that has ended: {', '.join(str(one['pid']) for one in left[:SHOWN])}",
                "end them: they hold memory and devices",
            )
        return ok("no other Ray runs there")
    seen = ", ".join(
        f"{one['kind']} {one['pid']}"
        + (f" of run {one['run']}" if one["run"] else "")
        + (f", head {one['head']}" if one["head"] else "")
        for one in main[:SHOWN]
    )
    fix = "end the other cluster (verl-musa cluster down, or `ray stop` by its owner) or use other hosts"
    ports = {view.site.ray.port, view.site.ray.node_manager}
    ours = any(
        one["port"] in ports or (one["head"] or "").rpartition(":")[2] == str(view.site.ray.port)
        for one in main
    )
    held = {one["pid"] for one in view.part(host, "net")["listeners"] if one["port"] in _wanted(view, host)}
    if ours or held & {one["pid"] for one in main}:
        return fail(f"another Ray uses these ports: {seen}", fix)
    return warn(f"another Ray runs there on other ports: {seen}", fix)


def _head(view: View, host: Host) -> Finding | None:
    if not host.head:
        return None
    address, port = view.addresses.get(host.name), view.site.ray.port
    fix = "name the head's training address: networks.training, or `training` of that host"
    if address is None:
        return fail(view.lacking.get(host.name, "no address"), fix)
    if is_loopback(address) and len(view.hosts) > 1:
        return fail(f"{address} is the loopback: no other host reaches it", fix)
    if view.in_management(host):
        return fail(f"{address} is in the management network: objects over 1 MB would hang", fix)
    faults = [
        one
        for one in view.mesh.faults
        if one.host == host.name and one.direction == "incoming" and port in one.ports
    ]
    far = sorted({peer for one in faults for peer in one.peers})
    if far:
        return fail(f"{address}:{port} is not reached from {', '.join(far)}", "see net.reach")
    return ok(f"{address}:{port}")


def _mixed(view: View, host: Host) -> Finding:
    """Whether the ports of the control store and of the Jobs API are taken for each other, in the site or in the environment."""
    ray = view.site.ray
    if ray.port == USUAL_DASHBOARD or ray.dashboard == USUAL_GCS:
        return fail(f"ray.port is {ray.port} and ray.dashboard is {ray.dashboard}: these look swapped",
                    f"ray.port is the control store's ({USUAL_GCS}), ray.dashboard the Jobs API's ({USUAL_DASHBOARD})")  # fmt: skip
    for source, values in (
        ("the recipe", view.variables()),
        (host.name, view.part(host, "host")["environment"]),
    ):
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_GCS_SERVER_ADDRESS"):
            value = values.get(name)
            if value and not view.expects(value):
                return fail(
                    f"{name}={value} in the environment of {source}: Ray's commands would go there",
                    f"unset {name}",
                )
    return ok(f"control store {ray.port}, Jobs API {ray.dashboard}")


CHECKS = (
    HostCheck("ray.ports", "ports of Ray", _ports),
    HostCheck("ray.stale", "another Ray on the host", _stale),
    HostCheck("ray.head", "address of the head", _head),
    HostCheck("ray.mixed", "control store's and Jobs API's ports", _mixed),
)
