from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_musa.cluster import node
from verl_musa.cluster.local_ray import MIB
from verl_musa.cluster.node import NodeSpec, endpoint, object_store_bytes
from verl_musa.errors import HostError
from verl_musa.recipe.site import RayPorts


def spec(**changes: Any) -> NodeSpec:
    values: dict[str, Any] = {
        "cluster": "run-1",
        "owner": "me@here",
        "host": "node2",
        "address": "198.51.100.12",
        "head": False,
        "head_address": "198.51.100.11:6379",
        "dashboard_host": "198.51.100.11",
        "num_gpus": 8,
        "num_cpus": 32,
        "ports": RayPorts(),
        "variables": {"GLOO_SOCKET_IFNAME": "eth1"},
        "peers": ["198.51.100.11", "198.51.100.12"],
    }
    return NodeSpec(**{**values, **changes})


def test_it_travels_whole() -> None:
    one = spec(ports=RayPorts(port=7000, workers=(30000, 31000)))
    assert NodeSpec.from_json(one.to_json()) == NodeSpec(**{**vars(one), "peers": list(one.peers)})


def test_a_worker_joins_the_head_at_explicit_addresses_and_ports() -> None:
    flags = spec().command(Path("t"), 5)
    assert "--address=198.51.100.11:6379" in flags
    assert "--head" not in flags
    for flag in (
        "--block",
        "--node-ip-address=198.51.100.12",
        "--num-gpus=8",
        "--num-cpus=32",
        "--object-store-memory=5",
        "--temp-dir=t",
        "--min-worker-port=20000",
        "--max-worker-port=24999",
        "--node-manager-port=6380",
        "--object-manager-port=6381",
        "--dashboard-agent-listen-port=52365",
        "--dashboard-agent-grpc-port=6382",
        "--runtime-env-agent-port=6383",
        "--metrics-export-port=6384",
    ):
        assert flag in flags
    assert not any(flag.startswith(("--port", "--dashboard-port", "--dashboard-host")) for flag in flags)


def test_the_head_has_ports_of_its_own() -> None:
    flags = spec(head=True).command(Path("t"), 5)
    for flag in (
        "--head",
        "--port=6379",
        "--dashboard-port=8265",
        "--dashboard-host=198.51.100.11",
        "--ray-client-server-port=10001",
    ):
        assert flag in flags
    assert not any(flag.startswith("--address") for flag in flags)


def test_nothing_of_the_environment_stands_on_the_command_line() -> None:
    assert not any(
        "opensesame" in word for word in spec(variables={"TOKEN": "opensesame"}).command(Path("t"), 5)
    )


def test_the_environment_marks_the_host_and_keeps_proxies_away() -> None:
    found = spec().environment({"PATH": "p", "no_proxy": "intranet", "RAY_ADDRESS": "elsewhere:1"})
    assert found["VERL_MUSA_RUN_ID"] == "run-1"
    assert found["VERL_MUSA_HOST"] == "node2"
    assert found["GLOO_SOCKET_IFNAME"] == "eth1"
    assert {"intranet", "198.51.100.11", "198.51.100.12", "127.0.0.1"} <= set(found["no_proxy"].split(","))
    assert "RAY_ADDRESS" not in found


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": "../x"},
        {"cluster": "-oProxyCommand=x"},
        {"cluster": "a\nb"},
        {"host": "a b"},
        {"address": "198.51.100.12; reboot"},
        {"dashboard_host": "$(id)"},
        {"peers": ["x,y"]},
        {"variables": {"A=B": "x"}},
        {"variables": {"A": "x\0y"}},
        {"unknown": 1},
        {"ports": {"port": 80}},
    ],
)
def test_hostile_values_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(HostError, match="does not understand"):
        NodeSpec.from_json({**spec().to_json(), **change})


@pytest.mark.parametrize("value", [None, [], "x", {}, {"cluster": "a"}])
def test_what_is_no_spec_is_refused(value: Any) -> None:
    with pytest.raises(HostError, match="does not understand"):
        NodeSpec.from_json(value)


def test_ipv6_gets_brackets() -> None:
    assert endpoint("2001:db8::1", 6379) == "[2001:db8::1]:6379"
    assert endpoint("192.0.2.1", 6379) == "192.0.2.1:6379"


def test_the_object_store_fits_memory_and_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "available_memory", lambda: 20_000 * MIB)
    monkeypatch.setattr("psutil.disk_usage", lambda _: type("Free", (), {"free": 1000 * MIB})())
    assert object_store_bytes(tmp_path) == 800 * MIB
    monkeypatch.setattr(node, "available_memory", lambda: 5_000 * MIB)
    assert object_store_bytes(tmp_path) == 500 * MIB
    monkeypatch.setattr(node, "available_memory", lambda: 100 * MIB)
    assert object_store_bytes(tmp_path) == 128 * MIB
