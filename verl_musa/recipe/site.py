"""What a user may write in ``site.yaml`` (schema version 1): the machines at hand, kept out of recipes."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, StringConstraints, model_validator

from verl_musa.recipe._yaml import Document
from verl_musa.recipe.schema import Identifier, Strict, Text

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)


def is_address(text: str) -> bool:
    """Whether ``text`` is an IPv4 or IPv6 address, without brackets, port or zone."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def host_name(text: str) -> str:
    """``text`` where it can be the name or address of a host; so it is never an option of ssh, or more than one word.

    Raises:
        ValueError: it cannot.
    """
    if not is_address(text) and _NAME.fullmatch(text) is None:
        strange = "" if text.isascii() else f"; it has letters beyond ASCII: {text[:80]!a}"
        raise ValueError(
            f"must be a host name (letters, digits, '.', '-', '_') or an IP address without a port{strange}"
        )
    return text


def _no_climbing(text: str) -> str:
    if ".." in text.split("/"):
        raise ValueError("must not have '..' in it")
    return text


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,14}", text, re.ASCII) is None:
            raise ValueError("must be a network such as 192.0.2.0/24, or the name of an interface") from None
    return text


HostText = Annotated[str, AfterValidator(host_name)]
Address = Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f.:]+$"), AfterValidator(host_name)]
NetworkText = Annotated[str, AfterValidator(_network)]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\n\r\x00]*$"), AfterValidator(_no_climbing)]
PathText = Annotated[str, StringConstraints(pattern=r"^[/~][^\n\r\x00]*$")]
Port = Annotated[int, Field(ge=1024, le=65535)]


class HostEntry(Strict):
    """One host of ``hosts``."""

    name: HostText
    """What it is called in messages; ssh goes there, too, where no address is given."""

    address: HostText | None = None
    """Where ssh goes; None: the name."""

    training: Address | None = None
    """Its address in the training network; None: the one that it has in ``networks.training``."""

    slots: Annotated[int, Field(ge=1, le=64)] | None = None
    """Devices that may be used there; None: as many as the recipe asks for."""


class SshSettings(Strict):
    """How hosts are reached. What is left out is up to the user's own ssh configuration."""

    user: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9._-]{0,31}$")] | None = None
    """Login name."""

    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """TCP port of sshd."""

    key: PathText | None = None
    """File with the private key; with it, no other key is tried."""

    known_hosts: PathText | None = None
    """File with the hosts' keys."""

    config: PathText | None = None
    """An ssh configuration file, in place of the user's own."""

    connect_seconds: Annotated[int, Field(ge=1, le=300)] = 10
    """Bound of each connection's set-up, in seconds."""


class Networks(Strict):
    """The networks that hosts have, each as a network (192.0.2.0/24) or as the name of an interface."""

    management: NetworkText | None = None
    """For people and ssh. Training traffic there is a mistake."""

    training: NetworkText | None = None
    """For Ray, gradients, weights and rollout."""


class RayPorts(Strict):
    """TCP ports of the Ray that a run brings up on several hosts, all fixed so that a firewall can know them."""

    port: Port = 6379
    """Of the head's control store (GCS)."""

    dashboard: Port = 8265
    """Of the head's dashboard and Jobs API."""

    client: Port = 10001
    """Of the head's Ray client server."""

    node_manager: Port = 6380
    """Of each host's raylet."""

    object_manager: Port = 6381
    """Of each host's object transfer."""

    agent: Port = 52365
    """Of each host's dashboard agent (HTTP)."""

    agent_grpc: Port = 6382
    """Of each host's dashboard agent (gRPC)."""

    runtime_env: Port = 6383
    """Of each host's runtime environment agent."""

    metrics: Port = 6384
    """Of each host's metrics."""

    workers: Annotated[tuple[Port, Port], Field(strict=False)] = (20000, 24999)
    """First and last port of the workers."""

    @model_validator(mode="after")
    def _differ(self) -> Self:
        single = {name: value for name, value in self.model_dump().items() if isinstance(value, int)}
        low, high = self.workers
        if high - low < 100:  # noqa: PLR2004  (fewer than a host's workers)
            raise ValueError("workers must span at least 100 ports, low to high")
        for name, value in single.items():
            if list(single.values()).count(value) > 1 or low <= value <= high:
                raise ValueError(f"{name} {value} is taken by another of these ports")
        return self


class Limits(Strict):
    """What each host must offer beside the recipe's own demands."""

    nofile: Annotated[int, Field(ge=1024)] = 65536
    """Open files of a process."""

    nproc: Annotated[int, Field(ge=1024)] = 16384
    """Processes and threads of the user, and of the container (``pids.max``)."""

    memlock_gib: Annotated[float, Field(ge=0)] | None = None
    """Locked memory in GiB, which RDMA needs; None: unlimited where the recipe's network is RoCE, else not looked at."""

    shm_gib: Annotated[float, Field(gt=0)] = 1.0
    """Free space of /dev/shm in GiB."""

    free_gib: Annotated[float, Field(gt=0)] = 20.0
    """Free space in GiB of the folder for temporary files and of the shared folder."""

    clock_seconds: Annotated[float, Field(gt=0)] = 2.0
    """Largest difference of two hosts' clocks."""

    mtu: Annotated[int, Field(ge=1280, le=65536)] | None = None
    """MTU of the training interface; None: equal on all hosts."""


class Site(Strict):
    """One ``site.yaml``: facts of the machines at hand, kept out of recipes."""

    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    """Version of this schema."""

    shared: AbsolutePath | None = None
    """Absolute path of a folder that every host sees under the same name; ``${site.shared}`` in recipes."""

    hostfile: Text | None = None
    """File with one host a line, such as ``node1 slots=8``; in place of ``hosts``."""

    hosts: Annotated[tuple[HostEntry, ...], Field(strict=False)] = ()
    """The hosts, in place of ``hostfile``."""

    head: HostText | None = None
    """Name of the host where Ray's head and the job's driver run. Never guessed from an order."""

    ssh: SshSettings = SshSettings()
    """How hosts are reached."""

    networks: Networks = Networks()
    """The hosts' networks."""

    container: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")] = "bare"
    """Name of the running container on each host that the job runs in; ``bare``: on the host itself."""

    engine: Literal["docker", "podman", "nerdctl"] = "docker"
    """Program that reaches into the container."""

    python: AbsolutePath | None = None
    """Python with verl-musa on the hosts; None: the path of the Python that runs this command."""

    ray: RayPorts = RayPorts()
    """Ports of Ray."""

    limits: Limits = Limits()
    """What hosts must offer."""

    values: dict[Identifier, Text] = Field(default_factory=dict)
    """Free named texts; ``models: /x`` here is ``${site.models}`` in recipes."""

    _document: Document | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _hosts_are_named_once(self) -> Self:
        if self.hosts and self.hostfile is not None:
            raise ValueError("hosts and hostfile both name hosts; keep one")
        names = [host.name for host in self.hosts]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"hosts names {twice} twice")
        if self.hosts and self.head is not None and self.head not in names:
            raise ValueError(f"head {self.head} is none of the hosts {', '.join(names)}")
        return self

    def attach(self, document: Document) -> Self:
        """Remember the file that this was read from."""
        self._document = document
        return self

    @property
    def document(self) -> Document | None:
        """The file it was read from, with its line numbers."""
        return self._document

    @property
    def source(self) -> Path | None:
        """The file it was read from; None where there is no ``site.yaml``."""
        return None if self._document is None else self._document.path

    def lookup(self) -> dict[str, str]:
        """Every name that ``${site.NAME}`` may use, with its text."""
        known = {} if self.shared is None else {"shared": self.shared}
        return {**self.values, **known}
