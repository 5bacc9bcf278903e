"""What this machine has: versions, devices and limits, read without importing torch and without guessing.

Public face: :func:`collect` and :func:`render`.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verl_musa.env._devices import find_devices
from verl_musa.env._host import host_facts
from verl_musa.env._versions import versions
from verl_musa.env.report import Device, Devices, Fact, Report

__all__ = ["Device", "Devices", "Fact", "Report", "collect", "render"]


def collect() -> Report:
    """Look at this machine. Starts at most three short processes, each with a bound."""
    devices = find_devices()
    return Report(versions=versions(devices), host=host_facts(), devices=devices)


def render(report: Report, console: Console) -> None:
    """Print the report as tables."""
    for title, facts in (("versions", report.versions), ("host", report.host)):
        table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
        table.add_column("what", no_wrap=True)
        table.add_column("value", overflow="fold")
        table.add_column("source", overflow="fold", style="dim")
        for fact in facts:
            table.add_row(
                fact.name, Text(fact.shown, style="" if fact.value is not None else "dim"), fact.source
            )
        console.print(table)
        console.print()
    _render_devices(report.devices, console)


def _render_devices(found: Devices, console: Console) -> None:
    if found.devices:
        table = Table(
            title=f"devices ({found.source})", title_justify="left", show_edge=False, pad_edge=False
        )
        for column in ("#", "name", "memory used / total MiB", "load %", "pci", "uuid"):
            table.add_column(column, overflow="fold")
        for device in found.devices:
            memory = f"{_shown(device.memory_used_mib)} / {_shown(device.memory_total_mib)}"
            load = _shown(device.utilization_percent)
            table.add_row(
                str(device.index), _shown(device.name), memory, load, _shown(device.pci), _shown(device.uuid)
            )
        console.print(table)
    else:
        console.print(
            f"devices: none ({found.source})" if found.devices is not None else "devices: none found"
        )
    for note in found.notes:
        console.print(f"  {note}", style="dim", markup=False)


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)
