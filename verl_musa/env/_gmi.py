"""Reads what ``mthreads-gmi`` prints: its table, its ``-q`` text and its JSON, none of which has a fixed schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_musa.env.report import Device

_DRIVER = re.compile(r"Driver\s*Version\s*:\s*(\S+)", re.IGNORECASE)
_SIZE = re.compile(r"([\d.]+)\s*(MiB|GiB|KiB|MB|GB|B)?", re.IGNORECASE)
_PER_MIB = {"b": 2**-20, "kib": 2**-10, "mib": 1.0, "mb": 1.0, "gib": 1024.0, "gb": 1024.0}
_ROW = re.compile(
    r"^\W*(?P<index>\d+)\s+(?P<name>\S.*?)\s*\|\s*(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)\s*\|"
    r"\s*(?P<load>\d+)%\s+(?P<used>\d+)\s*MiB\s*\(\s*(?P<total>\d+)\s*MiB\s*\)"
)
_PAIR = re.compile(r"^(?P<indent>\s*)(?P<key>[^:]+?)\s*:\s*(?P<value>.*)$")
_QUERY_START = re.compile(
    r"^\s*GPU\s*#?(\d+|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)\s*:?\s*(.*)$"
)


class UnreadableError(Exception):
    """The text is none of the known forms, or is cut off."""


@dataclass(frozen=True)
class Reading:
    """What one output says.

    Attributes:
        driver: version of the driver, None where the output does not name it.
        devices: the devices in it.
    """

    driver: str | None
    devices: tuple[Device, ...]


def parse(text: str) -> Reading:
    """Read any known form of output.

    Raises:
        UnreadableError: unknown or truncated.
    """
    stripped = text.strip()
    if not stripped:
        raise UnreadableError("it printed nothing")
    if stripped[0] in "{[":
        return _from_json(stripped)
    driver = _DRIVER.search(text)
    devices = tuple(_table_rows(text)) or tuple(_query_blocks(text))
    if not devices and not re.search(r"no\s+(device|gpu)s?\b", text, re.IGNORECASE):
        raise UnreadableError(f"no device in it: {stripped.splitlines()[0][:80]!r}")
    return Reading(driver.group(1) if driver else None, devices)


def _table_rows(text: str) -> Iterator[Device]:
    for line in text.splitlines():
        row = _ROW.match(line)
        if row:
            yield Device(
                index=int(row["index"]),
                name=row["name"],
                pci=row["pci"],
                memory_used_mib=int(row["used"]),
                memory_total_mib=int(row["total"]),
                utilization_percent=int(row["load"]),
            )


def _query_blocks(text: str) -> Iterator[Device]:
    """Blocks of ``-q``: a line ``GPU0 00000000:2a:00.0`` or ``GPU 0``, then indented ``Key : value`` lines."""
    blocks: list[dict[str, str]] = []
    section = ""
    for line in text.splitlines():
        start = _QUERY_START.match(line)
        if start and "Driver" not in line:
            blocks.append({"pci": next((part for part in start.groups() if ":" in part), "").strip()})
            section = ""
            continue
        pair = _PAIR.match(line)
        if blocks and pair:
            key, value = pair["key"].strip().lower(), pair["value"].strip()
            # A key without a value opens a section: "FB Memory Usage" holds "Total" and "Used".
            if value:
                blocks[-1].setdefault(f"{section}/{key}" if section else key, value)
                blocks[-1].setdefault(key, value)
            else:
                section = key
        elif blocks and line.strip():
            section = line.strip().lower()
    for index, block in enumerate(blocks):
        yield _device(index, block)


def _from_json(text: str) -> Reading:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UnreadableError(f"JSON that does not parse ({error})") from error
    entries = value if isinstance(value, list) else _device_list(value)
    if entries is None:
        raise UnreadableError(f"JSON without a list of GPUs; its keys are {', '.join(value) or 'none'}")
    driver = _find({} if isinstance(value, list) else value, "driver version")
    devices = tuple(
        _device(index, dict(_flatten(entry)))
        for index, entry in enumerate(entries)
        if isinstance(entry, dict)
    )
    return Reading(driver, devices)


def _device_list(value: dict[str, Any]) -> list[Any] | None:
    found = (item for key, item in value.items() if key.lower() in {"gpu", "gpus", "devices"})
    return next((item for item in found if isinstance(item, list)), None)


def _find(value: dict[str, Any], name: str) -> str | None:
    return next(
        (str(item) for key, item in _flatten(value) if _norm(key.rpartition("/")[2]) == _norm(name)), None
    )


def _norm(key: str) -> str:
    return re.sub(r"[\s_-]+", " ", key).strip().lower()


def _flatten(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        name = f"{prefix}{_norm(key)}"
        if isinstance(item, dict):
            yield from _flatten(item, f"{name}/")
        elif not isinstance(item, list):
            yield name, str(item)


def _device(index: int, fields: dict[str, str]) -> Device:
    def first(*names: str) -> str | None:
        return next((fields[name] for name in names if fields.get(name)), None)

    number = first("index", "gpu index", "id")
    load = first("utilization/gpu", "gpu utilization", "utilization gpu", "utilization")
    return Device(
        index=int(number) if number is not None and number.isdigit() else index,
        name=first("product name", "name"),
        uuid=first("gpu uuid", "uuid"),
        pci=first("pci", "pci/bus id", "bus id", "pci bus id"),
        memory_total_mib=_mib(first("fb memory usage/total", "memory total", "memory/total")),
        memory_used_mib=_mib(first("fb memory usage/used", "memory used", "memory/used")),
        utilization_percent=_percent(load),
    )


def _mib(text: str | None) -> int | None:
    match = _SIZE.match(text.strip()) if text else None
    if match is None:
        return None
    return round(float(match.group(1)) * _PER_MIB[(match.group(2) or "MiB").lower()])


def _percent(text: str | None) -> int | None:
    match = re.match(r"\s*(\d+)(?:\.\d+)?\s*%?\s*$", text) if text else None
    return int(match.group(1)) if match else None
