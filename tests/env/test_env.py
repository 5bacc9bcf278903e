from __future__ import annotations

import io
import json

from rich.console import Console

from verl_musa.env import Device, Devices, Fact, Report, render

FACTS = (
    Fact(name="torch", value="2.13.0", source="package metadata"),
    Fact(name="ray", value=None, source="package metadata", why="not installed", absent=True),
    Fact(name="driver", value=None, source="mthreads-gmi", why="[no] answer"),
)


def shown(devices: Devices) -> str:
    stream = io.StringIO()
    render(Report(versions=FACTS, host=(), devices=devices), Console(file=stream, width=140))
    return stream.getvalue()


def test_render() -> None:
    text = shown(
        Devices(source="mthreads-gmi", devices=(Device(index=0, name="MTT S5000", memory_total_mib=81920),))
    )
    for part in ("2.13.0", "not installed", "unknown: [no] answer", "MTT S5000", "unknown / 81920"):
        assert part in text


def test_render_without_devices() -> None:
    assert "devices: none found\n  a: [x] b" in shown(
        Devices(source="none", devices=None, notes=("a: [x] b",))
    )
    assert "devices: none (mthreads-gmi)" in shown(Devices(source="mthreads-gmi", devices=()))


def test_json_layout() -> None:
    devices = Devices(source="mthreads-gmi", devices=(Device(index=0),), driver="1", notes=("n",))
    value = Report(versions=FACTS, host=(), devices=devices).to_json()
    assert json.loads(json.dumps(value)) == value
    assert value["schema"] == 1
    assert value["versions"]["torch"] == {
        "state": "known",
        "value": "2.13.0",
        "source": "package metadata",
        "why": "",
    }
    assert (value["versions"]["ray"]["state"], value["versions"]["driver"]["state"]) == ("absent", "unknown")
    assert set(value["devices"]["list"][0]) == {
        "index",
        "name",
        "uuid",
        "pci",
        "memory_total_mib",
        "memory_used_mib",
        "utilization_percent",
    }
    none = Report(versions=(), host=(), devices=Devices(source="none", devices=None)).to_json()
    assert none["devices"] == {"source": "none", "list": None, "notes": []}
