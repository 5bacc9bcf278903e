"""Part of the probe: interfaces, routes, names, listeners and the Ray that runs. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import functools
import glob
import os
import re
import socket
import struct
from typing import Any, Iterator

from verl_musa.cluster.preflight.probe import command_of, each_within, read_text

RTM_GETADDR, NLM_F_DUMP_REQUEST, NLMSG_DONE, NLMSG_ERROR = 22, 0x301, 3, 2
IFA_ADDRESS, IFA_LOCAL = 1, 2
LISTENING = "0A"
IFF_UP, IFF_LOOPBACK = 0x1, 0x8
RAY = re.compile(
    r"(^|/)(gcs_server|raylet)(\s|$)|ray/dashboard/dashboard\.py|^ray::|ray\.scripts|(^|/)ray start"
)


def net_part(parameters: dict[str, Any]) -> dict[str, Any]:
    """Facts of the network; ``parameters["names"]`` are resolved."""
    return {
        "interfaces": interfaces(),
        "adapters": adapters(),
        "names": each_within(
            4, {name: functools.partial(resolved, name) for name in parameters.get("names", [])}
        ),
        "own_name": each_within(4, {"own": lambda: resolved(socket.gethostname())})["own"],
        "ephemeral": ephemeral_range(),
        "listeners": listeners(),
        "ray": ray_processes(),
        "connected_by": ([*os.environ.get("SSH_CONNECTION", "").split(), "", "", ""])[2],
    }


def interfaces() -> dict[str, dict[str, Any]]:
    """Name -> state, MTU and addresses of each interface."""
    found: dict[str, dict[str, Any]] = {}
    for index, name in socket.if_nameindex():
        flags = int(read_text(f"/sys/class/net/{name}/flags") or "0", 16)
        mtu = read_text(f"/sys/class/net/{name}/mtu")
        speed = read_text(f"/sys/class/net/{name}/speed")
        found[name] = {
            "index": index,
            "up": bool(flags & IFF_UP),
            "state": read_text(f"/sys/class/net/{name}/operstate") or "unknown",
            "loopback": bool(flags & IFF_LOOPBACK),
            "mtu": int(mtu) if mtu else None,
            "speed": int(speed) if speed and speed.isdigit() else None,
            "addresses": [],
        }
    by_index = {one["index"]: one for one in found.values()}
    for index, address, prefix in addresses():
        if index in by_index:
            by_index[index]["addresses"].append({"address": address, "prefix": prefix})
    return found


def addresses() -> Iterator[tuple[int, str, int]]:
    """Index of the interface, address and length of the prefix, of every address: asked of the kernel over netlink."""
    request = struct.pack("=LHHLL", 24, RTM_GETADDR, NLM_F_DUMP_REQUEST, 1, 0) + struct.pack(
        "=BBBBl", 0, 0, 0, 0, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(3)
        link.send(request)
        while True:
            data = link.recv(1 << 16)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=LH", data)
                if kind in (NLMSG_DONE, NLMSG_ERROR) or length < 16:
                    return
                yield from one_address(data[16:length])
                data = data[(length + 3) & ~3 :]


def one_address(body: bytes) -> Iterator[tuple[int, str, int]]:
    """The address in one message of the kernel."""
    family, prefix, _, _, index = struct.unpack_from("=BBBBL", body)
    attributes: dict[int, bytes] = {}
    rest = body[8:]
    while len(rest) >= 4:
        length, kind = struct.unpack_from("=HH", rest)
        if length < 4:
            break
        attributes[kind] = rest[4:length]
        rest = rest[(length + 3) & ~3 :]
    raw = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
    if raw and family in (socket.AF_INET, socket.AF_INET6):
        yield index, socket.inet_ntop(family, raw), prefix


def adapters() -> dict[str, dict[str, Any]]:
    """Name -> ports of each RDMA adapter."""
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted(glob.glob("/sys/class/infiniband/*")):
        ports = {}
        for port in sorted(glob.glob(f"{folder}/ports/*")):
            gids = {os.path.basename(file): read_text(file) or "" for file in glob.glob(f"{port}/gids/*")}
            ports[os.path.basename(port)] = {
                "state": read_text(f"{port}/state") or "",
                "layer": read_text(f"{port}/link_layer") or "",
                "gids": sorted(int(number) for number, gid in gids.items() if gid.strip("0:")),
            }
        found[os.path.basename(folder)] = {"ports": ports}
    return found


def resolved(name: str) -> list[str]:
    """The addresses that ``name`` has here, sorted; none where it has none."""
    try:
        return sorted({str(item[4][0]) for item in socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)})
    except socket.gaierror:
        return []


def ephemeral_range() -> list[int]:
    """First and last port that the kernel hands out by itself."""
    words = (read_text("/proc/sys/net/ipv4/ip_local_port_range") or "32768 60999").split()
    return [int(words[0]), int(words[1])]


def listeners() -> list[dict[str, Any]]:
    """Every TCP listener of this network namespace, and whose it is as far as this user may see."""
    found: list[dict[str, Any]] = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(path) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == LISTENING:
                address, port = words[1].rsplit(":", 1)
                found.append(
                    {
                        "port": int(port, 16),
                        "address": unhexed(address),
                        "inode": words[9],
                        "uid": int(words[7]),
                    }
                )
    owners = socket_owners({one["inode"] for one in found})
    for one in found:
        pid = owners.get(str(one.pop("inode")))
        one.update(
            pid=pid,
            command=None if pid is None else command_of(pid),
            run=None if pid is None else run_of(pid),
        )
    return found


def unhexed(text: str) -> str:
    """An address as the kernel writes it in /proc/net: words of four bytes in the order of this machine."""
    raw = bytes.fromhex(text)
    words = [
        raw[at : at + 4][::-1] if struct.pack("=H", 1) == b"\x01\x00" else raw[at : at + 4]
        for at in range(0, len(raw), 4)
    ]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, b"".join(words))


def socket_owners(inodes: Any) -> dict[str, int]:
    """Inode -> process that holds the socket."""
    found: dict[str, int] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # it ended, or is somebody else's
        for name in names:
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue  # closed meanwhile
            if link.startswith("socket:[") and link[8:-1] in inodes:
                found.setdefault(link[8:-1], pid)
    return found


def ray_processes() -> list[dict[str, Any]]:
    """The processes of any Ray in this network namespace: what each is, since when, of which head and of which run."""
    try:
        here = os.readlink("/proc/self/ns/net")
    except OSError:
        here = ""
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        title = command_of(pid)
        match = RAY.search(title)
        if match is None:
            continue
        try:
            if os.readlink(f"/proc/{pid}/ns/net") != here:
                continue
        except OSError:
            continue  # it ended, or is somebody else's
        whole = (read_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ")
        head = re.search(r"--gcs-address[= ](\S+)", whole)
        port = re.search(r"--gcs_server_port[= ](\d+)", whole)
        kind = next((kind for kind in ("gcs_server", "raylet", "dashboard") if kind in title), "worker")
        found.append({"pid": pid, "kind": kind, "head": head.group(1) if head else None, "run": run_of(pid),
                      "port": int(port.group(1)) if port else None, "command": title[:120]})  # fmt: skip
    return found


def run_of(pid: int) -> str | None:
    """The run that a process belongs to by its environment."""
    match = re.search(r"(?:^|\0)VERL_MUSA_RUN_ID=([^\0]{1,80})", read_text(f"/proc/{pid}/environ") or "")
    return match.group(1) if match else None
