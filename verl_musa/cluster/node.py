"""One host's part of a Ray on several hosts: what is asked for, the command that starts it, and its environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from verl_musa.cluster.host import GIB, available_memory
from verl_musa.cluster.local_ray import MIB, ray_environment
from verl_musa.cluster.processes import HOST_TAG, SHARED_MEMORY
from verl_musa.errors import HostError
from verl_musa.recipe.site import RayPorts, host_name, is_address

CLUSTER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
LARGEST_OBJECT_STORE = 64 * GIB
# Option of `ray start` -> field of the site's ports; each host's, and those that the head has beside them.
_EACH = {
    "node-manager-port": "node_manager",
    "object-manager-port": "object_manager",
    "dashboard-agent-listen-port": "agent",
    "dashboard-agent-grpc-port": "agent_grpc",
    "runtime-env-agent-port": "runtime_env",
    "metrics-export-port": "metrics",
}
_HEAD = {"port": "port", "dashboard-port": "dashboard", "ray-client-server-port": "client"}


def endpoint(address: str, port: int) -> str:
    """``address:port``, with brackets around an IPv6 address."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """What one host is asked to start.

    Attributes:
        cluster: id of the cluster; the processes carry it. A run's cluster has the run's id.
        owner: who brings it up, for people: ``user@machine``.
        host: the host's name in messages.
        address: the one that it registers with, in the training network.
        head: whether it is the head.
        head_address: ``address:port`` of the head's control store.
        dashboard_host: address that the head's dashboard listens on.
        num_gpus: devices that Ray hands out.
        num_cpus: logical CPUs that Ray hands out.
        ports: of ``site.ray``.
        variables: environment of Ray's processes, beside what the host has. May hold secrets: never written down.
        peers: addresses of all hosts, which no proxy may catch.
        wait_s: bound of the start in seconds.
        logs: folder that every host sees, where the host's logs go at the end; None: they are not kept.
    """

    cluster: str
    owner: str
    host: str
    address: str
    head: bool
    head_address: str
    dashboard_host: str
    num_gpus: int
    num_cpus: int
    ports: RayPorts
    variables: Mapping[str, str] = field(default_factory=dict)
    peers: Sequence[str] = ()
    wait_s: float = 300.0
    logs: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it travels to the host."""
        return {
            **asdict(self),
            "variables": dict(self.variables),
            "ports": self.ports.model_dump(mode="json"),
        }

    @classmethod
    def from_json(cls, value: Any) -> NodeSpec:
        """Read what travelled here.

        Raises:
            HostError: it is something else, or holds a value that cannot be.
        """
        try:
            ports = RayPorts.model_validate(value["ports"])
            spec = cls(**{**value, "ports": ports})
            spec.check()
        except (KeyError, TypeError, ValueError) as error:
            raise HostError("the agent does not understand what it is asked to start", found=str(error)[:300],
                            expected="a NodeSpec of this version of verl-musa", fix="install the same verl-musa on all hosts") from error  # fmt: skip
        return spec

    def check(self) -> None:
        """Raise ValueError for a value that cannot be."""
        if CLUSTER_ID.fullmatch(self.cluster) is None:
            raise ValueError(f"no id of a cluster: {self.cluster!r}")
        host_name(self.host)
        if not (is_address(self.address) and is_address(self.dashboard_host)):
            raise ValueError(f"no address: {self.address!r} or {self.dashboard_host!r}")
        if not all(is_address(peer) for peer in self.peers):
            raise ValueError(f"no address among {self.peers!r}")
        texts = [text for pair in self.variables.items() for text in pair]
        if any("\0" in text for text in texts) or any("=" in name for name in self.variables):
            raise ValueError("a variable of the environment cannot be set")

    def port_numbers(self) -> dict[str, int]:
        """Option of ``ray start`` -> port that this host listens on."""
        names = {**_EACH, **(_HEAD if self.head else {})}
        return {option: int(getattr(self.ports, name)) for option, name in names.items()}

    def command(self, temp_dir: Path, store_bytes: int) -> list[str]:
        """The command that starts this host's Ray and stays in the foreground as its parent."""
        options: dict[str, Any] = {
            "node-ip-address": self.address,
            "num-cpus": self.num_cpus,
            "num-gpus": self.num_gpus,
            "object-store-memory": store_bytes,
            "min-worker-port": self.ports.workers[0],
            "max-worker-port": self.ports.workers[1],
            "temp-dir": temp_dir,
            **self.port_numbers(),
        }
        if self.head:
            options["dashboard-host"] = self.dashboard_host
        else:
            options["address"] = self.head_address
        role = ["--head"] if self.head else []
        flags = [f"--{name}={value}" for name, value in options.items()]
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", *role]
        return [*start, "--block", "--disable-usage-stats", *flags]

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of this host's Ray, which every process of a job inherits."""
        own = dict(os.environ if base is None else base)
        own["no_proxy"] = ",".join(filter(None, [own.get("no_proxy"), *self.peers]))
        return ray_environment(self.cluster, {**self.variables, HOST_TAG: self.host}, own)


def object_store_bytes(shared_memory: Path = SHARED_MEMORY) -> int:
    """Size of a host's object store: a tenth of the free memory, at most 64 GiB and 80 % of the free shared memory."""
    room = psutil.disk_usage(str(shared_memory)).free * 8 // 10
    return int(max(128 * MIB, min(available_memory() // 10, room, LARGEST_OBJECT_STORE)))
