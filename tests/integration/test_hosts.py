"""Hosts that need no GPU: they come up, and each fault really happens and is really taken back.

What is asked here is asked by ssh, sockets and files, never by the checks that the faults are there to test.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.hosts import Host, Hosts, NoHostsError, Shape, faults, up
from ci.hosts.model import SHARED, Which

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PORT = 7001
"""Where every host listens."""

DATA = f"{SHARED}/data/part-0.bin"
TEMPORARY = "/tmp"  # noqa: S108  (inside a host)
UP_LIMIT_S = 60.0

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.5).close()
    print("open")
except TimeoutError:
    print("timeout")
except ConnectionRefusedError:
    print("refused")
except OSError as error:
    print(error.strerror)
"""
# Sends $3 bytes to a listener that reads nothing; says how long it takes until the other kernel has them, "lost" after 3 s.
SEND = """
import fcntl, socket, struct, sys, termios, time
link = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)
start = time.monotonic()
answer = "lost"
try:
    link.sendall(bytes(int(sys.argv[3])))
except TimeoutError:
    pass
while time.monotonic() - start < 3 and answer == "lost":
    if struct.unpack("i", fcntl.ioctl(link, termios.TIOCOUTQ, bytes(4)))[0] == 0:
        answer = "slow" if time.monotonic() - start > 0.3 else "fast"
    time.sleep(0.01)
print(answer)
"""


def connect(source: Host, address: str, port: int = PORT) -> str:
    """How a connection from one host to an address ends."""
    return source.run(["python3", "-c", CONNECT, address, str(port)]).strip()


def send(source: Host, address: str, size: int) -> str:
    return source.run(["python3", "-c", SEND, address, str(PORT), str(size)]).strip()


def by_ssh(hosts: Hosts, host: Host, script: str, which: Which = "management") -> str:
    """What a shell says that ssh started; its last error where it failed."""
    done = hosts.ssh(host, ["sh"], stdin=script, which=which, connect=2, limit=20)
    return done.stdout.strip() if done.returncode == 0 else f"{done.returncode}: {done.stderr.strip()[-200:]}"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(up(Shape(count=4)))
        except NoHostsError as error:
            pytest.skip(f"no hosts were brought up: {error}")
        (made.shared / "data").mkdir()
        (made.shared / "data" / "part-0.bin").write_bytes(b"one\n" * 1000)
        (made.shared / "data" / "part-1.bin").write_bytes(b"two\n" * 1000)
        for host in made.hosts:
            stack.enter_context(faults.port_taken(host, PORT, "::"))
            info = "/usr/lib/python3/dist-packages/ray-2.58.0.dist-info"
            host.sh(
                'mkdir "$1"; printf "Metadata-Version: 2.1\\nName: ray\\nVersion: 2.58.0\\n" > "$1/METADATA"',
                info,
            )
        yield made


def test_hosts_come_up_with_two_networks_and_one_shared_folder(hosts: Hosts) -> None:
    assert hosts.seconds < UP_LIMIT_S
    (hosts.shared / "seen").write_text("by all")
    for host in hosts.hosts:
        networks: tuple[Which, Which] = ("management", "training")
        for which in networks:
            assert by_ssh(hosts, host, f"hostname; cat {SHARED}/seen", which) == f"{host.name}\nby all"
        addresses = {
            link["ifname"]: [entry["local"] for entry in link["addr_info"]]
            for link in json.loads(host.run(["ip", "-json", "address"]))
        }
        assert {host.management, host.management6} <= set(addresses["eth0"])
        assert {host.training, host.training6} <= set(addresses["eth1"])
        assert host.sh("cat /proc/1/comm").strip() == "tini"
        assert host.sh("df -m --output=size /dev/shm | tail -n 1").strip() == "256"
    first, *others = hosts.hosts
    assert {connect(first, host.address(which)) for host in others for which in networks} == {"open"}
    assert {connect(first, host.training6) for host in others} == {"open"}


def test_a_host_reaches_the_others_by_name_and_key(hosts: Hosts) -> None:
    assert by_ssh(hosts, hosts.head, "ssh -o BatchMode=yes host3 hostname </dev/null") == "host3"
    assert by_ssh(hosts, hosts.head, "getent ahostsv4 host4-training | head -n 1").startswith(
        hosts[3].training
    )


def test_a_host_has_files_of_its_own(hosts: Hosts) -> None:
    hosts[1].sh("echo own > /root/own")
    assert by_ssh(hosts, hosts[1], "cat /root/own") == "own"
    assert by_ssh(hosts, hosts[2], "ls /root/own").startswith("2:")


@dataclass(frozen=True)
class Case:
    """A fault, what is asked, and the answers without and with it."""

    inject: Callable[[Hosts], AbstractContextManager[object]]
    ask: Callable[[Hosts], str]
    healthy: str
    faulty: str


def out_and_in(hosts: Hosts) -> str:
    return f"out {connect(hosts[1], hosts.head.training)}, in {connect(hosts.head, hosts[1].training)}"


def across(hosts: Hosts) -> str:
    return ", ".join([connect(hosts.head, hosts[1].management), connect(hosts.head, hosts[1].training),
                      by_ssh(hosts, hosts[1], "echo ssh")])  # fmt: skip


def small_and_large(hosts: Hosts) -> str:
    return f"{send(hosts.head, hosts[1].training, 100)}, {send(hosts.head, hosts[1].training, 100_000)}"


def two_files(hosts: Hosts) -> str:
    return (
        by_ssh(hosts, hosts[1], f"cd {SHARED}/data; ls") + ";" + by_ssh(hosts, hosts[2], f"ls {SHARED}/data")
    )


def sum_and_facts(hosts: Hosts) -> str:
    digest = hashlib.sha256(b"one\n" * 1000).hexdigest()
    facts = by_ssh(hosts, hosts[1], f"stat -c '%s %Y' {DATA}") == by_ssh(
        hosts, hosts[2], f"stat -c '%s %Y' {DATA}"
    )
    sums = [by_ssh(hosts, hosts[n], f"sha256sum < {DATA}").startswith(digest) for n in (1, 2)]
    return f"{sums}, same size and date: {facts}"


def canary(hosts: Hosts) -> str:
    mark = hosts.shared / f"canary-{time.monotonic_ns()}"
    mark.touch()
    seen = [by_ssh(hosts, hosts[n], f"[ -e {SHARED}/{mark.name} ] && echo yes || echo no") for n in (1, 2)]
    data = by_ssh(hosts, hosts[1], f"[ -e {DATA} ] && echo data")
    mark.unlink()
    return f"{seen}, {data}"


def writes(path: str) -> Callable[[Hosts], str]:
    script = f"cd {path} && (cp /etc/passwd written && rm written && echo written) 2>&1 | sed 's/.*: //'"
    return lambda hosts: ", ".join(by_ssh(hosts, hosts[n], script) for n in (1, 2))


def reads(hosts: Hosts) -> str:
    return ", ".join(by_ssh(hosts, hosts[n], f"head -c 3 {DATA} 2>&1 | sed 's/.*: //'") for n in (1, 2))


def says(script: str, number: int = 1) -> Callable[[Hosts], str]:
    return lambda hosts: by_ssh(hosts, hosts[number], script)


def clock(hosts: Hosts) -> str:
    ahead = int(by_ssh(hosts, hosts[1], "python3 -c 'import time; print(int(time.time()))'")) - int(
        time.time()
    )
    return "right" if abs(ahead) <= 2 else f"about {round(ahead, -1)} s ahead"


def ssh_error(hosts: Hosts) -> str:
    """``ok``, or the known beginning of what ssh says; the other hosts must not suffer."""
    assert by_ssh(hosts, hosts[2], "echo fine") == "fine"
    try:
        done = hosts.ssh(hosts[1], ["true"], connect=2, limit=6)
    except subprocess.TimeoutExpired:
        return "no end"
    known = (
        "timed out",
        "Connection refused",
        "No route to host",
        "Permission denied",
        "Host key verification failed",
    )
    return (
        "ok" if done.returncode == 0 else next((text for text in known if text in done.stderr), done.stderr)
    )


def names(name: str, number: int) -> Callable[[Hosts], str]:
    return says(
        f'python3 -c \'import socket; print(socket.gethostbyname("{name}").rpartition(".")[0])\'', number
    )


def route(hosts: Hosts) -> str:
    return hosts[1].sh('ip -o route get "$1" | grep -o "dev [a-z0-9]*"', hosts.head.training).strip()


def listening(hosts: Hosts) -> str:
    return connect(hosts.head, hosts[1].training, 6379)


CASES = {
    "port_drop": Case(lambda h: faults.port_drop(h[1], str(PORT), device="eth1"), across, "open, open, ssh", "open, timeout, ssh"),
    "port_reject": Case(lambda h: faults.port_reject(h[1], f"{PORT}-7009"), across, "open, open, ssh", "refused, refused, ssh"),
    "one_way": Case(lambda h: faults.one_way(h[1], h.others(h[1])), out_and_in, "out open, in open", "out open, in timeout"),
    "management_closed": Case(faults.management_closed, across, "open, open, ssh", "timeout, open, ssh"),
    "unreachable": Case(lambda h: faults.unreachable(h[1]), ssh_error, "ok", "timed out"),
    "large_packets_lost": Case(lambda h: faults.large_packets_lost(h[1]), small_and_large, "fast, fast", "fast, lost"),
    "slow_link": Case(lambda h: faults.slow_link(h.head, "1mbit"), small_and_large, "fast, fast", "fast, slow"),
    "interface_down": Case(lambda h: faults.interface_down(h[1]), across, "open, open, ssh", "open, timeout, ssh"),
    "interface_renamed": Case(lambda h: faults.interface_renamed(h[1], "ens5"), says("ls /sys/class/net"), "eth0\neth1\nlo", "ens5\neth0\nlo"),
    "mtu_differs": Case(lambda h: faults.mtu_differs(h[1], 1400), says("cat /sys/class/net/eth1/mtu"), "1500", "1400"),
    "wrong_route": Case(lambda h: faults.wrong_route(h[1], h.head), route, "dev eth1", "dev eth0"),
    "name_resolves_differently": Case(lambda h: faults.name_resolves_differently(h[1], "host1", "192.0.2.7"), says("getent ahostsv4 host1 | grep -c 192.0.2.7 || :"), "0", "3"),
    "head_is_loopback": Case(faults.head_is_loopback, lambda h: str(names("host1", 0)(h) == "127.0.1"), "False", "True"),
    "missing_path": Case(lambda h: faults.missing_path(h[1], DATA), two_files, "part-0.bin\npart-1.bin;part-0.bin\npart-1.bin", "part-1.bin;part-0.bin\npart-1.bin"),
    "different_file": Case(lambda h: faults.different_file(h[1], DATA), sum_and_facts, "[True, True], same size and date: True", "[False, True], same size and date: True"),
    "unshared_root": Case(lambda h: faults.unshared_root(h[1]), canary, "['yes', 'yes'], data", "['no', 'yes'], data"),
    "read_only": Case(lambda h: faults.read_only(h[1]), writes(SHARED), "written, written", "Read-only file system, written"),
    "unreadable_path": Case(lambda h: faults.unreadable_path(h[1], DATA), reads, "one, one", "Permission denied, one"),
    "full_disk": Case(lambda h: faults.full_disk(h[1], TEMPORARY), writes(TEMPORARY), "written, written", "No space left on device, written"),
    "no_inodes": Case(lambda h: faults.no_inodes(h[1], TEMPORARY), says("cd /tmp; (: > one && rm one && echo made) 2>&1 | sed 's/.*: //'; df --output=avail -BG . | tail -n 1 | grep -q ' *[1-9]' && echo free"), "made\nfree", "No space left on device\nfree"),
    "small_shm": Case(lambda h: faults.small_shm(h[1]), says("df -m --output=size /dev/shm | tail -n 1 | tr -d ' '"), "256", "8"),
    "low_nofile": Case(lambda h: faults.low_ulimit(h[1], "nofile", 1024), says("python3 -c 'import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1024)'"), "False", "True"),
    "low_nproc": Case(lambda h: faults.low_ulimit(h[1], "nproc", 100), says("python3 -c 'import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])' | grep -xc 100 || :"), "0", "1"),
    "low_memlock": Case(lambda h: faults.low_ulimit(h[1], "memlock", 65536), says("python3 -c 'import resource; print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])' | grep -xc 65536 || :"), "0", "1"),
    "low_pids": Case(lambda h: faults.low_pids(h[1], 30), says("python3 -c 'import threading, time\nt = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(40)]\ntry:\n  [one.start() for one in t]; print(\"started\")\nexcept RuntimeError as error: print(error)' 2>&1 | tail -n 1"), "started", "can't start new thread"),
    "proxy": Case(lambda h: faults.proxy(h[1]), says("echo ${http_proxy:-none}"), "none", "http://192.0.2.9:3128"),
    "clock_skew": Case(lambda h: faults.clock_skew(h[1], 90), clock, "right", "about 90 s ahead"),
    "wrong_key": Case(lambda h: faults.wrong_key(h[1]), ssh_error, "ok", "Permission denied"),
    "host_key_changed": Case(lambda h: faults.host_key_changed(h[1]), ssh_error, "ok", "Host key verification failed"),
    "sshd_hangs": Case(lambda h: faults.sshd_hangs(h[1]), ssh_error, "ok", "timed out"),
    "sshd_stopped": Case(lambda h: faults.sshd_stopped(h[1]), ssh_error, "ok", "Connection refused"),
    "killed_host": Case(lambda h: faults.killed_host(h, h[1]), ssh_error, "ok", "timed out"),
    "python_missing": Case(lambda h: faults.python_missing(h[1]), says("command -v python3 || echo none"), "/usr/bin/python3", "none"),
    "noisy_login": Case(lambda h: faults.noisy_login(h[1], "Hello"), lambda h: h.ssh(h[1], ["echo", "one"]).stdout, "one\n", "Hello\none\n"),
    "other_version": Case(lambda h: faults.other_version(h[1], "ray", "2.57.0"), says("python3 -c 'import importlib.metadata as m; print(m.version(\"ray\"))'"), "2.58.0", "2.57.0"),
    "other_python": Case(lambda h: faults.other_python(h[1], "3.10.12"), says("python3 -c 'import platform, sys; print(sys.version_info[:3] == (3, 10, 12), platform.python_version())' | grep -c 'True 3.10.12' || :"), "0", "1"),
    "changed_file": Case(lambda h: faults.changed_file(h[1], "/etc/debian_version", "changed"), says("tail -c 7 /etc/debian_version | grep -c changed || :"), "0", "1"),
    "port_taken": Case(lambda h: faults.port_taken(h[1], 6379), listening, "refused", "open"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_fault_happens_and_is_taken_back(hosts: Hosts, name: str) -> None:
    case = CASES[name]
    with case.inject(hosts):
        assert case.ask(hosts) == case.faulty
    assert case.ask(hosts) == case.healthy


def test_a_process_is_found_frozen_and_killed(hosts: Hosts) -> None:
    ask = 'ps -o stat= -p "$1" || :'
    with faults.started(hosts[1], ["sleep", "31415"]) as pid:
        assert faults.pids_of(hosts[1], "sleep", "31415") == [pid]
        assert faults.pids_of(hosts[2], "sleep", "31415") == []
        with faults.frozen(hosts[1], [pid]):
            assert hosts[1].sh(ask, str(pid)).startswith("T")
        assert hosts[1].sh(ask, str(pid)).startswith("S")
        with faults.killed(hosts[1], [pid]):
            assert faults.pids_of(hosts[1], "sleep", "31415") == []


def test_every_fault_is_tried_here() -> None:
    tools = {"environment", "frozen", "killed", "pids_of", "started", "low_ulimit"}
    assert set(faults.__all__) - tools <= set(CASES)


def test_namespaces_do_where_no_engine_starts() -> None:
    try:
        with up(Shape(count=2), kind="netns") as hosts:
            assert hosts.seconds < UP_LIMIT_S
            for case in (CASES["one_way"], CASES["low_pids"]):
                with ExitStack() as stack:
                    for host in hosts.hosts:
                        stack.enter_context(faults.port_taken(host, PORT, "::"))
                    assert case.ask(hosts) == case.healthy
                    with case.inject(hosts):
                        assert case.ask(hosts) == case.faulty
            with faults.killed_host(hosts, hosts[1]):
                assert hosts.ssh(hosts[1], ["true"], connect=2).returncode == 255
            assert by_ssh(hosts, hosts[1], "hostname") == "host2"
    except NoHostsError as error:
        pytest.skip(f"no hosts were brought up: {error}")


def test_why_there_are_no_hosts_is_said_of_every_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with (
        pytest.raises(NoHostsError, match=r"docker: .*; netns: namespaces need the folder"),
        up(Shape(image="no-such:image"), folder=tmp_path),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_people_bring_them_up_once_and_down(tmp_path: Path) -> None:
    folder = tmp_path / "hosts"

    def call(command: str) -> subprocess.CompletedProcess[str]:
        whole = [
            sys.executable,
            "-m",
            "ci.hosts",
            command,
            "--count",
            "1",
            "--kind",
            "netns",
            "--folder",
            str(folder),
        ]
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)

    first = call("up")
    if "no hosts:" in first.stderr:
        pytest.skip(first.stderr)
    try:
        assert "host1  management" in first.stdout, first.stderr
        assert call("up").stderr == f"hosts are up already: {folder}\n"
        assert call("status").returncode == 0
    finally:
        assert call("down").stdout == "down\n"
    assert call("status").returncode == 1
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "shared"]
