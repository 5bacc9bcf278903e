"""Hosts as containers of a Docker Engine: two internal networks, fixed addresses, an init, and limits of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ci.hosts.login import Plan, names_of
from ci.hosts.model import SHARED, Host, Network, NoHostsError

ENGINE_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
LABEL = "verl-musa.hosts"

# What faults need in there: nftables and tc, mounts, and to look at processes. Not --privileged, which brings devices of this machine.
RIGHTS = (
    *("--cap-add", "NET_ADMIN", "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--cap-add", "SYS_NICE"),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
)


class Docker:
    """Hosts of one engine.

    Args:
        address: of the engine, as ``DOCKER_HOST`` has it; None: the client's own choice.
        prefix: what the names of everything made there begin with.
    """

    kind = "docker"

    def __init__(self, address: str | None, prefix: str) -> None:
        program = shutil.which("docker")
        if program is None:
            raise NoHostsError("no docker client is installed (Debian: apt-get install docker.io)")
        self._program = [program] if address is None else [program, "--host", address]
        self._prefix = prefix
        self._networks: list[str] = []
        self._containers: dict[str, str] = {}

    def call(
        self, *arguments: str, limit: float = ENGINE_LIMIT_S, stdin: bytes = b"", raw: Path | None = None
    ) -> str:
        """Run the client; return its output, or write it to ``raw``.

        Raises:
            NoHostsError: it failed.
        """
        stream = None if raw is None else raw.open("wb")
        try:
            done = subprocess.run(
                [*self._program, *arguments],
                input=stdin,
                stdout=subprocess.PIPE if stream is None else stream,
                stderr=subprocess.PIPE,
                timeout=limit,
                check=False,
                # The legacy builder: the client at hand may lack BuildKit's plugin.
                env={**os.environ, "DOCKER_BUILDKIT": "0"},
            )
        finally:
            if stream is not None:
                stream.close()
        if done.returncode != 0:
            raise NoHostsError(
                f"docker {' '.join(arguments[:2])} failed: {done.stderr.decode(errors='replace').strip()[-500:]}"
            )
        return "" if done.stdout is None else done.stdout.decode(errors="replace")

    def ids(self) -> dict[str, list[str]]:
        """What was made, for who has to clean up after this process."""
        return {"containers": list(self._containers.values()), "networks": list(self._networks)}

    def up(self, plan: Plan) -> None:
        """Bring the hosts up.

        Raises:
            NoHostsError: the engine refuses something; what was made is removed by ``close``.
        """
        for network in plan.networks.values():
            self._networks.append(self._network(network, plan.shape.mtu))
        for host in plan.hosts:
            self._containers[host.name] = f"{self._prefix}-{host.name}"
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda host: self._host(plan, host), plan.hosts))

    def _network(self, network: Network, mtu: int) -> str:
        options = ("--internal", "--ipv6", "--subnet", str(network.subnet), "--subnet", str(network.subnet6))
        gateways = ("--gateway", network.address(-9), "--gateway", network.address6(-0xF))
        settings = {"bridge.name": network.bridge, "driver.mtu": str(mtu)}
        named = [
            text for name, value in settings.items() for text in ("-o", f"com.docker.network.{name}={value}")
        ]
        name = f"{self._prefix}-{network.which}"
        self.call(
            "network", "create", "--driver", "bridge", *options, *gateways, *named, "--label", LABEL, name
        )
        return name

    def _host(self, plan: Plan, host: Host) -> None:
        name, shape = self._containers[host.name], plan.shape
        first, second = (f"{self._prefix}-{which}" for which in plan.networks)
        limits = ("--memory", shape.memory, "--memory-swap", shape.memory, "--cpus", str(shape.cpus),
                  "--shm-size", shape.shm, "--pids-limit", str(shape.pids))  # fmt: skip
        files = [text for path in shape.mounts for text in ("--volume", f"{path}:{path}:ro")]
        known = [
            text for known, address in names_of(plan.hosts) for text in ("--add-host", f"{known}:{address}")
        ]
        command = ("--entrypoint", "/usr/bin/tini", plan.image, "--", "/bin/sh", "/usr/local/sbin/hosts-init")
        self.call(
            *("create", "--name", name, "--hostname", host.name, "--label", LABEL, "--user", "0", *RIGHTS),
            *("--network", first, "--ip", host.management, "--ip6", host.management6, *limits, *known),
            *("--volume", f"{plan.shared}:{SHARED}", *files, *command),
        )
        self.call("network", "connect", "--ip", host.training, "--ip6", host.training6, second, name)
        self.call("cp", "-", f"{name}:/", stdin=plan.files(host))
        self.call("start", name)

    def command(self, name: str, argv: Sequence[str], *, env: Sequence[tuple[str, str]] = ()) -> list[str]:
        """The client's command that runs ``argv`` in a host."""
        given = [text for key, value in env for text in ("--env", f"{key}={value}")]
        return [*self._program, "exec", "--interactive", "--user", "0", *given, self._containers[name], *argv]

    def kill(self, name: str) -> None:
        """End a host's processes at once."""
        self.call("kill", self._containers[name])

    def start(self, name: str) -> None:
        """Start a host that was killed."""
        self.call("start", self._containers[name])

    def limit_pids(self, name: str, limit: int) -> None:
        """Set the limit of processes of a host."""
        self.call("update", "--pids-limit", str(limit), self._containers[name])

    def close(self) -> None:
        """Remove the containers, then the networks."""
        if self._containers:
            self._try("rm", "--force", "--volumes", *self._containers.values())
            self._containers.clear()
        if self._networks:
            self._try("network", "rm", *self._networks)
            self._networks.clear()

    def _try(self, *arguments: str) -> None:
        try:
            self.call(*arguments)
        except NoHostsError as error:
            # A host that never came to be cannot be removed; the rest is.
            print(f"ci.hosts: {error}")
