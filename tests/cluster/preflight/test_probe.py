"""The probe, run for real: here, by this Python and by an old one where there is one."""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from verl_musa.cluster.preflight import probe_data, probe_host, probe_net
from verl_musa.cluster.preflight.phases import PULL
from verl_musa.cluster.preflight.probe import MARK, each_within, within
from verl_musa.cluster.preflight.program import (
    ARGV,
    DATA,
    FACTS,
    MESH,
    asked_of_site,
    probe_program,
    read_answer,
)


def _old_python() -> str:
    """The oldest Python at hand that starts; version managers put names on PATH that do not."""
    roots = [Path(root) for root in os.environ.get("PATH", "").split(os.pathsep)]
    roots += sorted(Path(sys.base_prefix).parent.glob("3.[89]*/bin"))
    found = [
        str(root / name)
        for name in ("python3.8", "python3.9", "python3.10")
        for root in roots
        if (root / name).exists()
    ]
    return next(
        (
            one
            for one in found
            if subprocess.run([one, "-c", ""], capture_output=True, check=False).returncode == 0
        ),
        sys.executable,
    )


OLD = _old_python()


def _run(
    parts: dict[str, str], parameters: dict[str, Any], python: str = sys.executable, **options: Any
) -> dict[str, Any]:
    program = probe_program(parts, {"seconds": 15, **parameters})
    done = subprocess.run(
        [python, *ARGV[1:]], input=program, capture_output=True, check=False, timeout=60, **options
    )
    answer = read_answer(done.stdout)
    assert answer is not None, done.stderr.decode()
    return answer


def test_every_part_is_python_3_8_and_needs_nothing_but_it() -> None:
    import sysconfig

    for parts in (FACTS, MESH, DATA):
        tree = ast.parse(probe_program(parts, {}), feature_version=(3, 8))
        names = {
            alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        names |= {
            (node.module or "").partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        assert names <= sys.stdlib_module_names, names
    assert sysconfig.get_python_version()


@pytest.mark.parametrize("python", sorted({sys.executable, OLD}))
def test_facts_of_this_machine(python: str) -> None:
    before = time.time()
    answer = _run(
        FACTS,
        {
            "python": sys.executable,
            "asked": asked_of_site(),
            "names": ["localhost", "nowhere.invalid"],
            "folders": {"shared": "/nonexistent/x"},
        },
        python,
    )
    assert before - 1 < answer["began"] <= answer["ended"] < time.time() + 1
    parts = {name: part["value"] for name, part in answer["parts"].items()}
    host, site, net = parts["host"], parts["site"], parts["net"]
    assert host["hostname"] == socket.gethostname()
    assert host["limits"]["nofile"][0] > 0 or host["limits"]["nofile"][0] == -1
    assert host["space"]["shared"]["value"]["path"] == "/"
    assert host["space"]["shm"]["value"]["total_mib"] > 0
    assert host["memory_mib"]["available"] > 0
    assert site["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"pydantic", "typer"} <= set(site["packages"])
    assert site["image"]["kind"] == "environment"
    assert len(site["own"]["series"]) > 6
    assert {"address": "127.0.0.1", "prefix": 8} in net["interfaces"]["lo"]["addresses"]
    assert net["interfaces"]["lo"]["loopback"]
    assert "127.0.0.1" in net["names"]["localhost"]["value"]
    assert net["names"]["nowhere.invalid"]["value"] == []
    assert parts["device"] == {"nodes": [], "holders": []}


def test_secrets_of_the_environment_stay_there() -> None:
    environment = {
        **os.environ,
        "http_proxy": "http://user:pass@proxy:3128",
        "VERL_API_KEY": "s3cret",
        "RAY_ADDRESS": "a:1",
    }
    found = _run({"host": "probe_host"}, {}, env=environment)["parts"]["host"]["value"]["environment"]
    assert found["http_proxy"] == "http://***@proxy:3128"
    assert found["VERL_API_KEY"] == "***"
    assert found["RAY_ADDRESS"] == "a:1"


def test_parameters_are_data_whatever_is_in_them(tmp_path: Path) -> None:
    hostile = "'''\"\"\"; import os; os.system('touch pwned') #\\\n\x00\u2028{}"
    answer = _run({"net": "probe_net"}, {"names": [hostile]}, cwd=tmp_path)
    assert hostile in answer["parts"]["net"]["value"]["names"]
    assert not list(tmp_path.iterdir())


def test_a_python_that_cannot_be_asked() -> None:
    for python, says in (
        ("/nonexistent/python", "No such file"),
        ("/bin/false", "ended with code 1"),
        ("/bin/true", "no answer"),
    ):
        found = _run({"site": "probe_host"}, {"python": python, "asked": "x"})["parts"]["site"]["value"]
        assert says in found["missing"]


def test_listeners_and_their_owners() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as other,
    ):
        found = {one["port"]: one for one in probe_net.listeners()}
        mine = found[server.getsockname()[1]]
        assert (mine["address"], mine["pid"]) == ("127.0.0.1", os.getpid())
        assert found[other.getsockname()[1]]["address"] == "::1"


def test_a_ray_is_found_by_its_processes(tmp_path: Path) -> None:
    program = tmp_path / "raylet"
    program.symlink_to(shutil.which("sleep") or "/bin/sleep")
    environment = {**os.environ, "VERL_MUSA_RUN_ID": "run-7"}
    process = subprocess.Popen(
        ["/bin/bash", "-c", f"exec -a '{program} --gcs-address=192.0.2.1:6379' sleep 60"], env=environment
    )
    try:
        for _ in range(50):
            found = [one for one in probe_net.ray_processes() if one["pid"] == process.pid]
            if found:
                break
            time.sleep(0.1)
        assert (found[0]["kind"], found[0]["head"], found[0]["run"]) == ("raylet", "192.0.2.1:6379", "run-7")
    finally:
        process.kill()
        process.wait()


def test_control_groups_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/self/cgroup": "8:pids:/job\n4:memory:/job\n0::/",
        "/sys/fs/cgroup/pids/job/pids.max": "max",
        "/sys/fs/cgroup/pids/pids.max": "500",
        "/sys/fs/cgroup/pids/pids.current": "20",
        "/proc/meminfo": "MemAvailable:  2097152 kB",
        "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2**30),
        "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(2**29),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
    }
    monkeypatch.setattr(probe_host, "read_text", files.get)
    monkeypatch.setattr(
        probe_host, "read_number", lambda path: int(files[path]) if files.get(path, "").isdigit() else None
    )
    assert probe_host.host_pids() == {"max": 500, "current": 20, "file": "/sys/fs/cgroup/pids/pids.max"}
    assert probe_host.host_memory() == {"available": 2048, "group_left": 512}
    files.clear()
    files["/proc/self/cgroup"] = "0::/a/b"
    files["/sys/fs/cgroup/a/pids.max"] = "300"
    assert probe_host.host_pids()["max"] == 300
    assert probe_host.host_memory() == {"available": None, "group_left": None}


def test_calls_have_bounds() -> None:
    start = time.monotonic()
    assert within(0.2, time.sleep, 30) == (None, "no answer within 0.2 s")
    assert each_within(0.2, {"slow": lambda: time.sleep(30), "quick": lambda: 7, "bad": lambda: 1 / 0}) == {
        "slow": {"error": "no answer within 0.2 s"}, "quick": {"value": 7}, "bad": {"error": "ZeroDivisionError: division by zero"}}  # fmt: skip
    assert time.monotonic() - start < 5


def test_an_answer_is_read_out_of_whatever_a_login_prints() -> None:
    assert read_answer(b"Welcome!\r\n" + MARK.encode() + b'{"parts": {}}\nbye\n') == {"parts": {}}
    assert read_answer(b"") is None
    assert read_answer(MARK.encode() + b'{"parts": {') is None
    assert read_answer(MARK.encode() + b"[]") is None


def _free(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def _mesh(
    addresses: dict[str, str],
    listen: dict[str, list[int]],
    expected: list[int],
    seconds: float = 12.0,
    **other: Any,
) -> dict[str, dict[str, Any]]:
    """Run the mesh part for each of some addresses of this machine at once."""
    until = time.time() + seconds
    names = list(addresses)

    def one(name: str) -> dict[str, Any]:
        peers = [peer for peer in names if peer != name]
        following = names[(names.index(name) + 1) % len(names)]
        parameters = {
            "until": until, "nonce": "n0nce", "me": name, "address": addresses[name], "listen": listen[name],
            "dial": [{"host": peer, "address": addresses[peer], "ports": expected} for peer in peers],
            "expect": {peer: [*listen[name], *([PULL] if names[names.index(peer) + 1 - len(names)] == name else [])] for peer in peers},
            "pulls": [{"host": following, "address": addresses[following], "port": expected[-1]}], "payload": 2**20, **other,
        }  # fmt: skip
        return dict(_run(MESH, parameters)["parts"]["mesh"]["value"])

    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


@pytest.mark.parametrize("addresses", [{"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}])
def test_hosts_call_each_other(addresses: dict[str, str]) -> None:
    ports = _free(3)
    start = time.monotonic()
    found = _mesh(addresses, dict.fromkeys(addresses, ports), ports, seconds=20)
    assert time.monotonic() - start < 18, "it ends as soon as all is known"
    for name, value in found.items():
        others = set(addresses) - {name}
        assert value["bound"] == {str(port): "ok" for port in ports}
        assert {
            peer: {one["status"] for one in calls.values()} for peer, calls in value["calls"].items()
        } == {peer: {"ok"} for peer in others}
        assert set(value["callers"]) == others
        assert all(abs(ahead) < 1 and took < 5 for ahead, took in value["clocks"].values())
        assert [one["bytes"] for one in value["pulled"].values()] == [2**20]
        assert value["uncalled"] == 0
        assert all(route["source"].startswith("127.") for route in value["routes"].values())


def test_ports_where_nobody_listens_and_strangers() -> None:
    addresses = {"a": "127.0.0.1", "b": "127.0.0.2"}
    good, closed, taken = _free(3)
    with socket.create_server(("127.0.0.2", taken)) as stranger:
        stranger.settimeout(20)

        def hang_up() -> None:
            while True:
                stranger.accept()[0].close()

        pool = ThreadPoolExecutor()
        pool.submit(hang_up)
        found = _mesh(addresses, {"a": [good], "b": [good, taken]}, [closed, taken, good])
        pool.shutdown(wait=False, cancel_futures=True)
    calls = found["a"]["calls"]["b"]
    assert calls[str(good)]["status"] == "ok"
    assert (calls[str(closed)]["status"], calls[str(closed)]["error"]) == ("refused", "ECONNREFUSED")
    assert calls[str(taken)]["status"] == "stranger"
    assert found["b"]["bound"][str(taken)] == "EADDRINUSE"


def test_an_address_that_is_not_here_and_one_without_a_route() -> None:
    (port,) = _free(1)
    found = _mesh({"a": "127.0.0.1", "b": "203.0.113.5"}, {"a": [port], "b": [port]}, [port], seconds=2)
    assert found["b"]["bound"] == {str(port): "EADDRNOTAVAIL"}
    assert found["a"]["calls"]["b"][str(port)]["status"] in {"no route", "dropped", "refused"}


def test_paths(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "sub" / "a").write_bytes(b"a" * 300_000)
    (folder / "b").write_bytes(b"b")
    (tmp_path / "link").symlink_to("gone")
    before = probe_data.path_facts(str(folder))
    assert (before["exists"], before["kind"], before["files"], before["bytes"]) == (
        True,
        "folder",
        2,
        300_001,
    )
    assert before["listed"] == {"b": 1, "sub/a": 300_000}
    assert before["mount"]["kind"]
    content = bytearray((folder / "sub" / "a").read_bytes())
    content[150_000] ^= 1
    (folder / "sub" / "a").write_bytes(content)
    after = probe_data.path_facts(str(folder))
    assert after["names"] == before["names"]
    assert after["sampled"]["sub/a"] != before["sampled"]["sub/a"]
    assert after["sampled"]["b"] == before["sampled"]["b"]
    assert probe_data.path_facts(str(tmp_path / "none" / "deep")) == {
        "exists": False,
        "parent": str(tmp_path),
    }
    assert probe_data.path_facts(str(tmp_path / "link"))["dangling"] == "gone"
    assert probe_data.path_facts(str(folder / "b"))["kind"] == "file"


def _canaries(shared: dict[str, str], seconds: float = 4.0) -> dict[str, dict[str, Any]]:
    until = time.time() + seconds

    def one(name: str) -> dict[str, Any]:
        parameters = {
            "until": until,
            "nonce": "n0",
            "me": name,
            "everybody": list(shared),
            "shared": shared[name],
            "paths": {},
        }
        return dict(_run(DATA, parameters)["parts"]["data"]["value"]["canary"]["value"])

    with ThreadPoolExecutor() as pool:
        return dict(zip(shared, pool.map(one, shared), strict=True))


def test_a_canary_is_seen_by_all_and_gone_afterwards(tmp_path: Path) -> None:
    start = time.monotonic()
    found = _canaries(dict.fromkeys(("a", "b", "fd00::3"), str(tmp_path)), seconds=25)
    assert time.monotonic() - start < 20, "it ends as soon as all have seen all"
    assert all(
        one["missing"] == [] and one["left"] == [] and one["seconds"] is not None for one in found.values()
    )
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_the_same(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    found = _canaries(
        {
            "a": str(tmp_path / "1"),
            "b": str(tmp_path / "1"),
            "c": str(tmp_path / "2"),
            "d": str(tmp_path / "none"),
        }
    )
    assert found["a"]["missing"] == ["c", "d"]
    assert found["c"]["missing"] == ["a", "b", "d"]
    assert found["d"]["error"] == "no such folder"
    assert not list((tmp_path / "1").iterdir())
    assert not list((tmp_path / "2").iterdir())
