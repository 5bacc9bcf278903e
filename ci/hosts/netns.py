"""Hosts without an engine: network, mount, process, IPC and name namespaces over a folder that holds the base.

Needs root and iproute2. Each host has files of its own (an overlay over the base), processes of its own with an init, a network of its
own, and, where this machine's control groups can be written, limits of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import psutil

from ci.hosts.login import Plan, names_of
from ci.hosts.model import Host, Network, NoHostsError, Shape

LIMIT_S = 60.0
CGROUPS = Path("/sys/fs/cgroup")

# $1 the root, $2 the name, $3 size of /dev/shm, $4 the shared folder, further: mounts of this machine. Runs in the new namespaces.
_INSIDE = """\
set -eu
root=$1 name=$2 shm=$3 shared=$4; shift 4
hostname "$name"
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount --rbind -o ro /sys/fs/cgroup "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
  : > "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o "size=$shm" shm "$root/dev/shm"
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/mnt/shared"
mount --bind "$shared" "$root/mnt/shared"
for path in "$@"; do mkdir -p "$root$path"; mount --rbind -o ro "$path" "$root$path"; done
while [ ! -e "$root/network-is-up" ]; do sleep 0.05; done
exec chroot "$root" /usr/bin/tini -- /bin/sh /usr/local/sbin/hosts-init
"""


class Namespaces:
    """Hosts of this machine's kernel.

    Args:
        folder: for their files.
        prefix: what the names of everything made begin with.

    Raises:
        NoHostsError: not root, or a tool is missing.
    """

    kind = "netns"

    def __init__(self, folder: Path, prefix: str) -> None:
        if os.geteuid() != 0:
            raise NoHostsError("namespaces take root")
        missing = [name for name in ("ip", "unshare", "nsenter", "mount") if shutil.which(name) is None]
        if missing:
            raise NoHostsError(f"{', '.join(missing)} not installed (Debian: iproute2, util-linux)")
        self._folder = folder
        self._prefix = prefix
        self._bridges: list[str] = []
        self._mounts: list[Path] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._inits: dict[str, int] = {}
        self._cgroups: list[Path] = []
        self._plan: Plan | None = None

    def ids(self) -> dict[str, list[str]]:
        """What was made, for who has to clean up after this process."""
        return {
            "processes": [str(process.pid) for process in self._running.values()],
            "bridges": list(self._bridges),
            "mounts": [str(path) for path in self._mounts],
        }

    def up(self, plan: Plan) -> None:
        """Bring the hosts up over the folder ``plan.image``.

        Raises:
            NoHostsError: a step fails; what was made is removed by ``close``.
        """
        self._plan = plan
        for network in plan.networks.values():
            self._bridges.append(network.bridge)
            _do("ip", "link", "add", network.bridge, "type", "bridge")
            _do(
                "ip",
                "address",
                "add",
                f"{network.address(-9)}/{network.subnet.prefixlen}",
                "dev",
                network.bridge,
            )
            _do("ip", "link", "set", network.bridge, "mtu", str(plan.shape.mtu), "up")
        for host in plan.hosts:
            root = self._root(host.name, Path(plan.image))
            with tarfile.open(fileobj=BytesIO(plan.files(host))) as tar:
                tar.extractall(root, filter="tar")
            lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names_of(plan.hosts))]
            (root / "etc" / "hosts").write_text("\n".join(lines) + "\n")
            (root / "etc" / "hostname").write_text(f"{host.name}\n")
            self.start(host.name)

    def _root(self, name: str, base: Path) -> Path:
        places = {part: self._folder / name / part for part in ("upper", "work", "root")}
        for path in places.values():
            path.mkdir(parents=True)
        options = f"lowerdir={base},upperdir={places['upper']},workdir={places['work']}"
        _do("mount", "-t", "overlay", "-o", options, "overlay", str(places["root"]))
        self._mounts.append(places["root"])
        return places["root"]

    def start(self, name: str) -> None:
        """Start a host, for the first time or again.

        Raises:
            NoHostsError: it does not come up.
        """
        if self._plan is None:
            raise NoHostsError("the hosts were never up")
        shape = self._plan.shape
        root = self._folder / name / "root"
        flag = root / "network-is-up"
        flag.unlink(missing_ok=True)
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child")
        inside = (
            "sh",
            "-c",
            _INSIDE,
            "sh",
            str(root),
            name,
            shape.shm,
            str(self._plan.shared),
            *map(str, shape.mounts),
        )
        log = (self._folder / f"{name}.log").open("ab")
        with log:
            process = subprocess.Popen(
                [shutil.which("unshare") or "unshare", *spaces, *inside],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._running[name] = process
        self._inits[name] = _child(process)
        self._limit(name, shape)
        host = next(one for one in self._plan.hosts if one.name == name)
        for network in self._plan.networks.values():
            self._connect(host, network, self._inits[name], shape.mtu)
        flag.touch()

    def _connect(self, host: Host, network: Network, init: int, mtu: int) -> None:
        outer = f"{network.bridge}{host.number}"
        addresses = {
            "management": (host.management, host.management6),
            "training": (host.training, host.training6),
        }[network.which]
        _do(
            "ip",
            "link",
            "add",
            outer,
            "mtu",
            str(mtu),
            "type",
            "veth",
            "peer",
            "name",
            network.device,
            "mtu",
            str(mtu),
            "netns",
            str(init),
        )
        _do("ip", "link", "set", outer, "master", network.bridge, "up")
        inside = ("nsenter", f"--net=/proc/{init}/ns/net")
        _do(*inside, "ip", "link", "set", "lo", "up")
        _do(*inside, "ip", "address", "add", f"{addresses[0]}/24", "dev", network.device)
        _do(*inside, "ip", "-6", "address", "add", f"{addresses[1]}/64", "dev", network.device, "nodad")
        _do(*inside, "ip", "link", "set", network.device, "up")

    def command(self, name: str, argv: Sequence[str], *, env: Sequence[tuple[str, str]] = ()) -> list[str]:
        """The command that runs ``argv`` in a host's namespaces."""
        init = self._inits[name]
        given = [f"{key}={value}" for key, value in env]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        enter = [
            shutil.which("nsenter") or "nsenter",
            "--target",
            str(init),
            "--all",
            f"--root=/proc/{init}/root",
            "--wd=/",
        ]
        return [*enter, "env", "-i", path, "HOME=/root", *given, *argv]

    def kill(self, name: str) -> None:
        """End a host's processes at once: with its first process, the kernel ends all others."""
        process = self._running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._inits.pop(name), signal.SIGKILL)
        process.wait(timeout=LIMIT_S)

    def limit_pids(self, name: str, limit: int) -> None:
        """Set the limit of processes of a host.

        Raises:
            NoHostsError: this machine's control groups cannot be written.
        """
        group = next(
            (
                path
                for path in self._cgroups
                if path.name == f"{self._prefix}-{name}" and (path / "pids.max").exists()
            ),
            None,
        )
        if group is None:
            raise NoHostsError("no control group for the number of processes can be made here")
        (group / "pids.max").write_text(str(limit))

    def _limit(self, name: str, shape: Shape) -> None:
        """Put a host into control groups of its own, where they can be had: without, it runs with this machine's limits."""
        limits = {"pids": ("pids.max", str(shape.pids)), "memory": ("memory.limit_in_bytes", shape.memory)}
        for controller, (file, value) in limits.items():
            group = CGROUPS / controller / f"{self._prefix}-{name}"
            if not (CGROUPS / controller / "cgroup.procs").exists():
                continue
            with contextlib.suppress(OSError):
                group.mkdir(exist_ok=True)
                if group not in self._cgroups:
                    self._cgroups.append(group)
                (group / file).write_text(value)
                (group / "cgroup.procs").write_text(str(self._inits[name]))

    def close(self) -> None:
        """End the hosts, then remove interfaces, mounts and control groups."""
        for name in list(self._running):
            self.kill(name)
        for bridge in self._bridges:
            _try("ip", "link", "delete", bridge)
        self._bridges.clear()
        for path in reversed(self._mounts):
            _try("umount", str(path))
        self._mounts.clear()
        for group in self._cgroups:
            with contextlib.suppress(OSError):
                group.rmdir()
        self._cgroups.clear()


def _child(process: subprocess.Popen[bytes]) -> int:
    """The process that ``unshare`` made, which is the first in its namespace."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        children = psutil.Process(process.pid).children()
        if children:
            return children[0].pid
        time.sleep(0.01)
    raise NoHostsError(f"unshare made no process (exit code {process.poll()})")


def _do(*command: str) -> str:
    program = shutil.which(command[0]) or command[0]
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise NoHostsError(f"{' '.join(command[:4])} failed: {done.stderr.strip()}")
    return done.stdout


def _try(*command: str) -> None:
    with contextlib.suppress(NoHostsError):
        _do(*command)
