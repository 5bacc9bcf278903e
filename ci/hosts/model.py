"""What container hosts are to those who use them, whichever way they were brought up."""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

SHARED = "/mnt/shared"  # verl-musa: ignore[path.machine] inside hosts that are made here
"""Where every host sees the shared folder."""

IMAGE_PYTHON = "/opt/verl-musa/bin/python"
"""Python with verl-musa in our images."""

SITE_INSIDE = "/etc/verl-musa-site.yaml"
"""A ``site.yaml`` in each host, for commands that run there."""

RUN_LIMIT_S = 60.0
UP_LIMIT_S = 90.0

Which = Literal["management", "training"]


class NoHostsError(Exception):
    """No hosts can be had here; the text says why."""


class CommandError(Exception):
    """A command in a host failed, which was not expected of it."""


@dataclass(frozen=True)
class Network:
    """One of the two networks.

    Attributes:
        which: what it is for.
        subnet: IPv4; host N has the address .10+N, the machine that runs all this has .1.
        subnet6: IPv6, likewise.
        device: the interface's name in each host.
        bridge: the interface's name on this machine.
    """

    which: Which
    subnet: ipaddress.IPv4Network
    subnet6: ipaddress.IPv6Network
    device: str
    bridge: str

    def address(self, number: int) -> str:
        """IPv4 address of host ``number`` (from 1); of this machine for -9."""
        return str(self.subnet[10 + number])

    def address6(self, number: int) -> str:
        """IPv6 address of host ``number`` (from 1)."""
        return str(self.subnet6[0x10 + number])


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How hosts are made.

    Attributes:
        count: how many.
        image: a reference in the engine, to which sshd and tools are added; None: the light base, with Python and no Ray.
        memory: limit of each host, as the engine writes it.
        cpus: limit of each host.
        shm: size of each /dev/shm.
        pids: limit of processes of each host.
        mtu: of both networks.
        shared: folder of this machine behind ``/mnt/shared``; None: a new one.
        mounts: further folders of this machine, read-only, each under its own path.
        environment: variables of ssh sessions.
        python: Python with verl-musa in there, for ``site.yaml``; None: that of our images, or none.
    """

    count: int = 4
    image: str | None = None
    memory: str = "2g"
    cpus: float = 2.0
    shm: str = "256m"
    pids: int = 20000
    mtu: int = 1500
    shared: Path | None = None
    mounts: tuple[Path, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    python: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 64:  # noqa: PLR2004
            raise ValueError(f"1 to 64 hosts, not {self.count}")


class Backend(Protocol):
    """What brings hosts up: an engine, or namespaces."""

    kind: str

    def command(self, name: str, argv: Sequence[str], *, env: Sequence[tuple[str, str]] = ()) -> list[str]:
        """The command of this machine that runs ``argv`` in a host, as root and not through ssh."""
        ...

    def kill(self, name: str) -> None:
        """End a host as a power cut does: all its processes at once; its files stay."""
        ...

    def start(self, name: str) -> None:
        """Start a host that was killed."""
        ...

    def limit_pids(self, name: str, limit: int) -> None:
        """Set the limit of processes of a host."""
        ...

    def close(self) -> None:
        """End and remove everything that was brought up."""
        ...


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: ``host1`` …
        number: from 1.
        management: its IPv4 address for people and ssh.
        training: its IPv4 address for everything else.
        management6: IPv6.
        training6: IPv6.
    """

    name: str
    number: int
    management: str
    training: str
    management6: str
    training6: str
    backend: Backend = field(repr=False, compare=False)

    def address(self, which: Which) -> str:
        """Its IPv4 address in a network."""
        return self.management if which == "management" else self.training

    def ask(
        self, argv: Sequence[str], *, stdin: str | None = None, limit: float = RUN_LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` in the host, as root and not through ssh, so that it works whatever the fault."""
        command = self.backend.command(self.name, argv)
        return subprocess.run(
            command, input=stdin or "", capture_output=True, text=True, timeout=limit, check=False
        )

    def run(self, argv: Sequence[str], *, stdin: str | None = None, limit: float = RUN_LIMIT_S) -> str:
        """As ``ask``; return what it printed.

        Raises:
            CommandError: it failed.
        """
        done = self.ask(argv, stdin=stdin, limit=limit)
        if done.returncode != 0:
            raise CommandError(
                f"{self.name}: {list(argv)} ended with {done.returncode}: {done.stderr.strip()[-500:]}"
            )
        return done.stdout

    def sh(self, script: str, *arguments: str, limit: float = RUN_LIMIT_S) -> str:
        """Run a fixed script; values reach it as ``$1`` and so on, never as part of its text."""
        return self.run(["sh", "-euc", script, "sh", *arguments], limit=limit)

    def spawn(self, argv: Sequence[str]) -> int:
        """Start a process that outlives this call; return its id in the host."""
        return int(self.sh('setsid "$@" </dev/null >/dev/null 2>&1 & echo $!', *argv))

    def end(self, pid: int) -> None:
        """End a process that ``spawn`` started, if it still runs."""
        self.sh('kill -9 "$1" 2>/dev/null || :', str(pid))


@dataclass
class Hosts:
    """Hosts that are up.

    Attributes:
        hosts: in order; ``host1`` is the head.
        networks: management and training.
        folder: of this machine: keys, ``ssh_config``, ``known_hosts``, ``hostfile``, ``site.yaml``.
        shared: the folder of this machine behind ``/mnt/shared``.
        shape: how they were made.
        seconds: how long it took to bring them up.
    """

    hosts: tuple[Host, ...]
    networks: dict[Which, Network]
    folder: Path
    shared: Path
    backend: Backend
    shape: Shape
    seconds: float = 0.0

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    @property
    def head(self) -> Host:
        """The first."""
        return self.hosts[0]

    @property
    def site(self) -> Path:
        """A ``site.yaml`` for these hosts and a command that runs on this machine."""
        return self.folder / "site.yaml"

    def others(self, host: Host) -> tuple[Host, ...]:
        """All hosts but one."""
        return tuple(one for one in self.hosts if one.name != host.name)

    def ssh_command(
        self, host: Host, argv: Sequence[str], *, which: Which = "management", connect: int = 5
    ) -> list[str]:
        """The command of this machine that runs ``argv`` in a host through ssh; its words must be free of blanks."""
        options = ["-T", "-F", str(self.folder / "ssh_config"), "-o", f"ConnectTimeout={connect}"]
        return [shutil.which("ssh") or "ssh", *options, "--", host.address(which), *argv]

    def ssh(
        self,
        host: Host,
        argv: Sequence[str],
        *,
        which: Which = "management",
        connect: int = 5,
        stdin: str = "",
        limit: float = RUN_LIMIT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` in a host through ssh, as a user's command does."""
        command = self.ssh_command(host, argv, which=which, connect=connect)
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=limit, check=False
        )

    def verl_musa(self, *arguments: str, login: Host | None = None) -> list[str]:
        """The command that runs ``verl-musa ARGUMENTS`` on this machine, or as a user who sits on the host ``login``.

        Here ``--site`` is ``site``, there it is ``SITE_INSIDE``. There it needs an image of ours, or ``with_stack``.
        """
        entry = ("-c", "import sys; from verl_musa.cli import main; sys.exit(main(sys.argv[1:]))", *arguments)
        if login is None:
            return [sys.executable, *entry]
        python = str(self.shape.python or IMAGE_PYTHON)
        return login.backend.command(login.name, [python, *entry], env=self.shape.environment)

    def wait_for_ssh(self, hosts: Sequence[Host] | None = None, *, limit: float = UP_LIMIT_S) -> None:
        """Wait until ssh works.

        Raises:
            NoHostsError: a host does not answer within ``limit`` seconds.
        """
        deadline = time.monotonic() + limit
        for host in self.hosts if hosts is None else hosts:
            while True:
                done = self.ssh(host, ["true"])
                if done.returncode == 0:
                    break
                if time.monotonic() > deadline:
                    raise NoHostsError(
                        f"{host.name} does not answer by ssh within {limit:.0f} s: {done.stderr.strip()}"
                    )
                time.sleep(0.1)

    def revive(self, host: Host) -> None:
        """Start a killed host and wait until ssh works."""
        self.backend.start(host.name)
        self.wait_for_ssh([host])

    def close(self) -> None:
        """End and remove everything that was brought up."""
        self.backend.close()
