from __future__ import annotations

import socket
from pathlib import Path

import pytest

from verl_musa.cluster import host
from verl_musa.errors import HostError


def test_memory_that_is_there_passes_and_more_does_not() -> None:
    host.check_memory(0.001)
    with pytest.raises(HostError) as caught:
        host.check_memory(1e6)
    assert "at least 1e+06 GiB" in str(caught.value)
    assert "GiB free" in str(caught.value)


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "1000\n", "memory.current": "400\n"}, 600),
        ({"memory.max": "max\n", "memory.current": "400\n"}, None),
        ({"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "1200"}, 0),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": "1"}, None),
        ({}, None),
    ],
)
def test_a_control_group_limits_memory(tmp_path: Path, files: dict[str, str], left: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host._control_group_left(tmp_path) == left


def test_shared_memory_is_checked() -> None:
    host.check_shared_memory(1)
    with pytest.raises(HostError, match="shared memory"):
        host.check_shared_memory(1 << 60)


def test_a_taken_port_and_an_impossible_one_are_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not host.port_is_free(port)
        with pytest.raises(HostError, match=f"port {port} is taken"):
            host.check_port(port, "--ray-port")
    with pytest.raises(HostError, match="not a port"):
        host.check_port(80, "--ray-port")


def test_free_ports_differ_and_are_free() -> None:
    ports = host.free_ports(8)
    assert len(set(ports)) == 8
    assert any(host.port_is_free(port) for port in ports)


def test_missing_packages_are_named() -> None:
    assert set(host.check_packages(["psutil", "requests"])) == {"psutil", "requests"}
    with pytest.raises(HostError, match="lacks no-such-dist, nor-this"):
        host.check_packages(["psutil", "no-such-dist", "nor-this"])
