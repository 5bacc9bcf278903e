"""Who could not call whom, and whose fault that most likely is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from verl_musa.cluster.hosts import Host
from verl_musa.recipe.site import RayPorts

BLAMED_FROM = 2
"""Peers that must all be out of reach before a host itself, and not a pair, is taken for the cause."""

HEAD_PORTS = ("port", "dashboard")
HOST_PORTS = ("node_manager", "object_manager", "agent", "agent_grpc", "metrics")


def ports_of(ray: RayPorts, host: Host, ephemeral: Sequence[int]) -> list[int]:
    """The ports of a host that other hosts must reach: Ray's, and a few of those that MCCL, Gloo and SGLang are given by the kernel."""
    named = [*(HEAD_PORTS if host.head else ()), *HOST_PORTS]
    return list(dict.fromkeys([*(getattr(ray, name) for name in named), *ray.workers, *ephemeral]))


def names_of(ray: RayPorts) -> dict[int, str]:
    """Port -> what listens there in a run."""
    names = {value: f"Ray {name}" for name, value in ray.model_dump().items() if isinstance(value, int)}
    return {**names, **dict.fromkeys(ray.workers, "Ray workers")}


def ephemeral_ports(ranges: Sequence[Sequence[int]], taken: set[int]) -> list[int]:
    """Three ports that every host's kernel could hand out, from the low, middle and high part of what all ranges share."""
    if not ranges:
        return []
    low, high = max(one[0] for one in ranges), min(one[1] for one in ranges)
    if high - low < 100:  # noqa: PLR2004  (no room for three different places)
        return []
    chosen = []
    for start in (low + 10, (low + high) // 2, high - 90):
        free = next((port for port in range(start, min(start + 80, high)) if port not in taken), None)
        if free is not None:
            chosen.append(free)
    return chosen


@dataclass(frozen=True)
class Fault:
    """Calls that failed alike.

    Attributes:
        host: who is blamed.
        direction: ``incoming``: others cannot call it; ``outgoing``: it cannot call others.
        status: the probe's word.
        peers: the others.
        ports: the ports that were called.
        error: what the kernel said.
    """

    host: str
    direction: str
    status: str
    peers: tuple[str, ...]
    ports: tuple[int, ...]
    error: str = ""


@dataclass(frozen=True)
class Mesh:
    """What the mesh parts of all hosts said; ``values`` holds those that answered, ``errors`` why others did not."""

    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def failed(self) -> dict[tuple[str, str], dict[int, tuple[str, str]]]:
        """(caller, called) -> port -> status and error of each call that failed. Ports that nobody listened on are left out."""
        found: dict[tuple[str, str], dict[int, tuple[str, str]]] = {}
        for caller, value in self.values.items():
            for called, calls in value["calls"].items():
                bound = self.values.get(called, {}).get("bound", {})
                bad = {
                    int(port): (call["status"], call["error"])
                    for port, call in calls.items()
                    if call["status"] != "ok" and bound.get(port) == "ok"
                }
                if bad:
                    found[caller, called] = bad
        return found

    @cached_property
    def faults(self) -> list[Fault]:
        """The failed calls, each set with the host that most likely causes it.

        A host that none of several others can call is the cause; so is one that can call none of several that others can call.
        Of a pair alone the called one is named, with its caller.
        """
        left = dict(self.failed)
        names = list(self.values)
        blamed: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for direction, own in (("incoming", 1), ("outgoing", 0)):
            for name in names:
                pairs = [pair for pair in left if pair[own] == name]
                peers = [other for other in names if other != name and self._called(other, name, direction)]
                if len(pairs) >= max(BLAMED_FROM, len(peers)):
                    blamed[name, direction] = pairs
            for key, pairs in blamed.items():
                if key[1] == direction:
                    for pair in pairs:
                        left.pop(pair, None)
        for pair in left:
            blamed.setdefault((pair[1], "incoming"), []).append(pair)
        return [
            fault
            for (name, direction), pairs in blamed.items()
            for fault in self._grouped(name, direction, pairs)
        ]

    def _called(self, other: str, name: str, direction: str) -> bool:
        caller, called = (other, name) if direction == "incoming" else (name, other)
        return called in self.values[caller]["calls"]

    def _grouped(self, name: str, direction: str, pairs: Sequence[tuple[str, str]]) -> list[Fault]:
        by_status: dict[str, dict[str, set[Any]]] = {}
        for pair in pairs:
            for port, (status, error) in self.failed[pair].items():
                group = by_status.setdefault(status, {"peers": set(), "ports": set(), "errors": set()})
                group["peers"].add(pair[0] if direction == "incoming" else pair[1])
                group["ports"].add(port)
                group["errors"].add(error)
        return [
            Fault(name, direction, status, tuple(sorted(group["peers"])), tuple(sorted(group["ports"])), ", ".join(sorted(filter(None, group["errors"]))))
            for status, group in sorted(by_status.items())
        ]  # fmt: skip

    def clock_of(self, host: str, head: str) -> tuple[float, float] | None:
        """How far the host's clock is ahead of the head's, and how far from the truth that can be; None where they did not talk."""
        for caller, called, sign in ((head, host, 1), (host, head, -1)):
            said = self.values.get(caller, {}).get("clocks", {}).get(called)
            if said is not None:
                return sign * said[0], said[1] / 2
        return None
