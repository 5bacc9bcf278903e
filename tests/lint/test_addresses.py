from __future__ import annotations

import pytest

from verl_musa.lint.addresses import inside, is_of_a_site


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.1.2.3", ["10.1.2.3"]),
        ("root@172.16.0.9", ["172.16.0.9"]),
        ("--master=192.168.1.5:6379", ["192.168.1.5:6379"]),
        ("tcp://100.64.3.2:29500", ["100.64.3.2:29500"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
        ("11.22.33.44:6379", ["11.22.33.44:6379"]),
        ("10.0.0.7/24", ["10.0.0.7/24"]),
        ("[fd00::12]:6379", ["fd00::12"]),
        ("fe80::1ff:fe23:4567:890a", ["fe80::1ff:fe23:4567:890a"]),
        ("http://worker3/x", ["worker3"]),
        ("http://sandbox:8080", ["sandbox:8080"]),
        ("ray://head.cluster.local:10001", ["head.cluster.local:10001"]),
        ("gpu-node-12:8265", ["gpu-node-12:8265"]),
    ],
)
def test_hosts_of_a_site(text: str, found: list[str]) -> None:
    assert list(inside(text)) == found


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:8265",
        "0.0.0.0",  # noqa: S104
        "::1",
        "::",
        "192.0.2.1:80",
        "2001:db8::1",
        "8.8.8.8",
        "10.0.0.0/8",
        "fd00::/8",
        "224.0.0.1",
        "169.254.169.254",
        "nvidia-cufft==10.9.0.58",
        "v10.1.2.3",
        "10.1.2.3.4",
        "1.2.3",
        "999.1.1.1",
        "http://localhost:8000",
        "http://host:8000",
        "http://your-server:8000",
        "http://host.docker.internal:8000",
        "https://huggingface.co:443/x",
        "http://…:8000",
        "12:30:45",
        "a::b",
        "std::vector",
        "image:2024",
        "qwen3:8192",
    ],
)
def test_hosts_of_nobody(text: str) -> None:
    assert list(inside(text)) == []


def test_public_addresses_count_with_a_port_only() -> None:
    assert not is_of_a_site("11.22.33.44")
    assert is_of_a_site("11.22.33.44", with_port=True)
    assert not is_of_a_site("no address")
