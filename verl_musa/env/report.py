"""The report of ``verl-musa env``: facts, each with the place it was read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

JSON_SCHEMA = 1
"""Version of the layout of :meth:`Report.to_json`; a field may be added within a version, never renamed."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One value, or the reason why it is not known.

    Attributes:
        name: what it is, such as ``torch``.
        value: the value; None where it is not known or not there.
        source: where it was read, or was looked for.
        why: why there is no value; empty where there is one.
        absent: the thing is known not to be there (not installed, not set), as opposed to not known.
    """

    name: str
    value: str | None
    source: str
    why: str = ""
    absent: bool = False

    @property
    def state(self) -> Literal["known", "absent", "unknown"]:
        """Whether there is a value, there is none, or nobody can tell."""
        if self.value is not None:
            return "known"
        return "absent" if self.absent else "unknown"

    @property
    def shown(self) -> str:
        """The value, the reason of its absence, or ``unknown: why``."""
        if self.value is not None:
            return self.value
        return self.why if self.absent else f"unknown: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Device:
    """One Moore Threads GPU, as the driver's tools see it (MUSA_VISIBLE_DEVICES plays no part).

    Attributes:
        index: position in the tool's list.
        name: product name.
        uuid: unique id.
        pci: bus address.
        memory_total_mib: device memory in MiB.
        memory_used_mib: used device memory in MiB.
        utilization_percent: load of the compute units, 0 to 100.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    pci: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    utilization_percent: int | None = None


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The device list.

    Attributes:
        source: ``mthreads-ml-py``, ``mthreads-gmi``, or ``none`` where neither gave an answer.
        devices: the list; None where it is not known. An empty list means that a tool answered "no device".
        driver: version of the kernel driver as that source gave it.
        notes: what each source that gave no answer said.
    """

    source: str
    devices: tuple[Device, ...] | None
    driver: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it.

    Attributes:
        versions: hardware stack and Python packages.
        host: operating system and its limits.
        devices: the device list.
    """

    versions: Sequence[Fact]
    host: Sequence[Fact]
    devices: Devices

    def to_json(self) -> dict[str, Any]:
        """Plain data: ``{"schema", "versions", "host", "devices"}``; facts by name."""
        listed = self.devices.devices
        return {
            "schema": JSON_SCHEMA,
            "versions": {fact.name: _fact(fact) for fact in self.versions},
            "host": {fact.name: _fact(fact) for fact in self.host},
            "devices": {
                "source": self.devices.source,
                "list": None if listed is None else [asdict(device) for device in listed],
                "notes": list(self.devices.notes),
            },
        }


def _fact(fact: Fact) -> dict[str, str | None]:
    return {"state": fact.state, "value": fact.value, "source": fact.source, "why": fact.why}
