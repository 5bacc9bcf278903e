from __future__ import annotations

import json

import pytest

from verl_musa.env._gmi import UnreadableError, parse
from verl_musa.env.report import Device

TABLE = """\
Sun Nov 29 20:00:00 2026
---------------------------------------------------------------
    mthreads-gmi:2.3.2           Driver Version:3.3.5-server
---------------------------------------------------------------
ID   Name           |PCIe                |%GPU  Mem
---------------------------------------------------------------
0    MTT S5000            |00000000:2a:00.0    |0%    66641MiB(81920MiB)
     Physical      P0     |16x(16x)            |52C   YES
     On-die, EDC
1    MTT S5000            |00000000:3b:00.0    |97%    12MiB(81920MiB)
     Physical      P0     |16x(16x)            |50C   YES
     On-die, EDC
---------------------------------------------------------------
No running processes found
"""

QUERY = """\
Driver Version : 3.3.5-server

GPU0 00000000:2a:00.0
    Product Name            : MTT S5000
    GPU UUID                : aa-bb
    FB Memory Usage
        Total               : 81920 MiB
        Used                : 66641 MiB
        Free                : 15279 MiB
    Utilization
        Gpu                 : 5%
        Memory              : 81%
GPU1 00000000:3b:00.0
    Product Name            : MTT S5000
    FB Memory Usage         :
        Total               : 81920MiB
"""


def test_table() -> None:
    reading = parse(TABLE)
    assert reading.driver == "3.3.5-server"
    assert reading.devices == (
        Device(
            index=0,
            name="MTT S5000",
            pci="00000000:2a:00.0",
            memory_used_mib=66641,
            memory_total_mib=81920,
            utilization_percent=0,
        ),
        Device(
            index=1,
            name="MTT S5000",
            pci="00000000:3b:00.0",
            memory_used_mib=12,
            memory_total_mib=81920,
            utilization_percent=97,
        ),
    )


def test_query_text() -> None:
    reading = parse(QUERY)
    assert reading.driver == "3.3.5-server"
    assert reading.devices == (
        Device(
            index=0,
            name="MTT S5000",
            uuid="aa-bb",
            pci="00000000:2a:00.0",
            memory_total_mib=81920,
            memory_used_mib=66641,
            utilization_percent=5,
        ),
        Device(index=1, name="MTT S5000", pci="00000000:3b:00.0", memory_total_mib=81920),
    )


def test_json_with_spaces_in_keys() -> None:
    entry = {
        "Index": "3",
        "GPU UUID": "u",
        "Product Name": "MTT S5000",
        "FB Memory Usage": {"Total": "80 GiB", "Used": "1024MiB", "Free": "x"},
        "Utilization": {"Gpu": "7 %", "Memory": "1 %"},
    }
    reading = parse(json.dumps({"Driver Version": "3.3.8-server", "GPU": [entry]}))
    assert reading.driver == "3.3.8-server"
    assert reading.devices == (
        Device(
            index=3,
            name="MTT S5000",
            uuid="u",
            memory_total_mib=81920,
            memory_used_mib=1024,
            utilization_percent=7,
        ),
    )


@pytest.mark.parametrize("wrap", [lambda entries: {"gpus": entries}, lambda entries: entries])
def test_json_with_underscores(wrap: object) -> None:
    assert callable(wrap)
    reading = parse(json.dumps(wrap([{"product_name": "MTT S4000", "memory_total": "32768 MiB"}, {}])))
    assert reading.driver is None
    assert reading.devices == (Device(index=0, name="MTT S4000", memory_total_mib=32768), Device(index=1))


def test_no_device_is_an_answer() -> None:
    assert parse("mthreads-gmi:2.3.2  Driver Version:3.3.5\nNo devices found\n").devices == ()
    assert parse('{"gpus": []}').devices == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "printed nothing"),
        ("  \n", "printed nothing"),
        ("Segmentation fault", "no device in it: 'Segmentation fault'"),
        (TABLE[: TABLE.index("0    MTT")], "no device in it"),
        (TABLE[: TABLE.index("66641")], "no device in it"),
        ('{"GPU": [{"Index"', "JSON that does not parse"),
        ('{"cards": []}', "JSON without a list of GPUs; its keys are cards"),
    ],
)
def test_unreadable(text: str, why: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse(text)
    assert why in str(caught.value)


def test_fields_it_cannot_read_are_unknown() -> None:
    (device,) = parse('{"gpus": [{"memory_total": "n/a", "utilization": "n/a", "index": "x"}]}').devices
    assert device == Device(index=0)
