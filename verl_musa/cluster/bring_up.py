"""A Ray on several hosts: head first, then the workers, each with a bound; looked at again; and taken down."""

from __future__ import annotations

import getpass
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.cluster.fleet import Answered, Fleet, Member, failure
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.jobs_api import JobsApi, RayApiError
from verl_musa.cluster.node import CLUSTER_ID, NodeSpec, endpoint
from verl_musa.errors import HostError
from verl_musa.fileio import write_json
from verl_musa.recipe.site import RayPorts, Site

HEAD_S = 420.0
"""Bound of the head's start: its dashboard takes minutes on a loaded host."""
WORKER_S = 240.0
STOP_S = 120.0
SSH_EXTRA_S = 30.0
"""What ssh and the agent's own cleaning up may take beyond a bound that the agent keeps."""
NODES_S = 60.0
HEALTH_S = 20.0
"""Ray notices a lost node within this: a node that is alive after it has been heard of (health checks of Ray 2.58, measured)."""
WIDTH = 8
"""Workers that join at once in a cluster of more hosts than this; fewer join one after another, which a loaded host needs."""

Progress = Callable[[str], None]


def owner() -> str:
    """Who brings a cluster up, for people."""
    return f"{getpass.getuser()}@{platform.node()}"


@dataclass
class Cluster:
    """A Ray on several hosts, as it is asked for.

    Attributes:
        cluster: its id.
        owner: who brings it up.
        members: its hosts, the head first.
        num_gpus: devices of each.
        num_cpus: logical CPUs that Ray hands out on each.
        ports: Ray's.
        variables: environment of Ray's processes on all hosts; not written down.
        logs: folder that every host sees, where each host's logs go at the end, by its name.
        created: seconds since the epoch.
    """

    cluster: str
    owner: str
    members: list[Member]
    num_gpus: int
    num_cpus: int
    ports: RayPorts
    variables: Mapping[str, str] = field(default_factory=dict)
    logs: Path | None = None
    created: float = field(default_factory=time.time)

    @property
    def head(self) -> Member:
        """The head."""
        return self.members[0]

    @property
    def hosts(self) -> list[Host]:
        """The hosts, the head first."""
        return [member.host for member in self.members]

    @property
    def url(self) -> str:
        """The dashboard's address: in the management network where the site has one."""
        return f"http://{endpoint(self.head.management, self.ports.dashboard)}"

    @property
    def dashboard_host(self) -> str:
        """What the dashboard listens on: every address where the head has two.

        Ray registers the training address for it, where its agents on all hosts report to; people reach the management one.
        """
        head = self.head
        if head.management == head.address:
            return head.address
        return "::" if ":" in head.management else "0.0.0.0"  # noqa: S104

    def name_of(self, address: str) -> str:
        """The host that registered with ``address``, as people call it."""
        return next((f"{m.name} ({address})" for m in self.members if m.address == address), address)

    def spec(self, member: Member) -> NodeSpec:
        """What one host is asked to start."""
        interface = {"GLOO_SOCKET_IFNAME": member.interface, "MCCL_SOCKET_IFNAME": member.interface}
        return NodeSpec(
            cluster=self.cluster,
            owner=self.owner,
            host=member.name,
            address=member.address,
            head=member is self.head,
            head_address=endpoint(self.head.address, self.ports.port),
            dashboard_host=self.dashboard_host,
            num_gpus=self.num_gpus,
            num_cpus=self.num_cpus,
            ports=self.ports,
            variables={**interface, **self.variables},
            peers=sorted({address for one in self.members for address in (one.address, one.management)}),
            wait_s=HEAD_S if member is self.head else WORKER_S,
            logs=None if self.logs is None else str(self.logs / member.name),
        )

    def to_json(self) -> dict[str, Any]:
        """What is kept of it: enough to find it again and to end it."""
        return {
            "schema": 1,
            "cluster": self.cluster,
            "owner": self.owner,
            "created": self.created,
            "url": self.url,
            "num_gpus": self.num_gpus,
            "num_cpus": self.num_cpus,
            "hosts": [
                {"name": m.name, "address": m.host.address, "training": m.address, "head": m is self.head, "interface": m.interface}
                for m in self.members
            ],
        }  # fmt: skip


def check_id(text: str) -> str:
    """``text`` where it can be the id of a cluster.

    Raises:
        HostError: it cannot.
    """
    if CLUSTER_ID.fullmatch(text) is None:
        raise HostError("that is no id of a cluster", found=ascii(text[:100]),
                        expected="letters, digits, '.', '-' and '_', at most 100", fix="`verl-musa cluster status` lists them")  # fmt: skip
    return text


def records_folder(site: Site) -> Path:
    """Where records of clusters are kept: below the shared folder, so that every host's users see them.

    Raises:
        HostError: the site has no shared folder.
    """
    if site.shared is None:
        raise HostError("the site has no shared folder", where=str(site.source or "site.yaml"), found="no `shared`",
                        expected="the absolute path of a folder that every host sees under the same name", fix="add it to site.yaml")  # fmt: skip
    return Path(site.shared) / ".verl-musa" / "clusters"


@dataclass(frozen=True)
class Known:
    """A cluster of which a record is kept."""

    cluster: str
    owner: str
    url: str
    hosts: tuple[Host, ...]
    num_gpus: int
    addresses: Mapping[str, str]


def known_clusters(site: Site) -> dict[str, Known]:
    """Every cluster of which the site keeps a record; files that are none are left out."""
    found = {}
    for path in sorted(records_folder(site).glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            hosts = tuple(Host(h["name"], h["address"], h["head"]) for h in value["hosts"])
            addresses = {str(h["training"]): str(h["name"]) for h in value["hosts"]}
            one = Known(check_id(value["cluster"]), value["owner"], value["url"], hosts, int(value["num_gpus"]), addresses)  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, HostError):
            continue
        found[one.cluster] = one
    return found


def keep_record(cluster: Cluster, site: Site) -> None:
    """Write the record, before anything is started: what a crash leaves can then be found and ended."""
    folder = records_folder(site)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{cluster.cluster}.json", cluster.to_json())


def forget_record(cluster: str, site: Site) -> None:
    """Remove the record of a cluster that is down."""
    (records_folder(site) / f"{check_id(cluster)}.json").unlink(missing_ok=True)


def bring_up(
    cluster: Cluster,
    fleet: Fleet,
    progress: Progress,
    *,
    health_s: float = HEALTH_S,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Start the head, then the workers, and wait until Ray knows all of them with their devices, twice.

    Raises:
        HostError: a host did not come up; the message names it. What has come up stays for the caller to take down.
    """
    _start([cluster.head], cluster, fleet, progress)
    workers = cluster.members[1:]
    at_once = 1 if len(cluster.members) <= WIDTH else WIDTH
    for first in range(0, len(workers), at_once):
        _start(workers[first : first + at_once], cluster, fleet, progress)
    api = JobsApi(cluster.url)
    progress(f"waiting for all {len(cluster.members)} hosts in {cluster.url}/api/v0/nodes")
    wait_nodes(cluster, api, timeout_s=NODES_S, pause=pause)
    if health_s:
        progress(
            f"looking again in {health_s:.0f} s: Ray takes that long to notice a host that it cannot reach"
        )
        pause(health_s)
        wait_nodes(cluster, api, timeout_s=NODES_S / 2, pause=pause)


def _start(some: Sequence[Member], cluster: Cluster, fleet: Fleet, progress: Progress) -> None:
    specs = {member.name: cluster.spec(member) for member in some}
    for name, spec in specs.items():
        progress(f"{name}: {'the head starts' if spec.head else 'joins'} at {spec.address}")
    bound = max(spec.wait_s for spec in specs.values()) + SSH_EXTRA_S
    answers = fleet.call_all(
        [member.host for member in some],
        "start",
        lambda host: {"node": specs[host.name].to_json()},
        timeout_s=bound,
        seen=lambda one: progress(f"{one.host}: {_told(one)}"),
    )
    for name in specs:
        if not answers[name].ok:
            raise failure(answers[name], "starting Ray")


def _told(answered: Answered) -> str:
    if not answered.ok or answered.answer is None:
        return f"not up: {answered.why}"
    return "is up already" if answered.answer.get("already") else "is up"


def wait_nodes(
    cluster: Cluster, api: JobsApi, *, timeout_s: float, pause: Callable[[float], None] = time.sleep
) -> None:
    """Wait until Ray has every host's address alive, with its devices, and no other.

    Raises:
        HostError: it has not within ``timeout_s`` seconds; names the hosts.
    """
    deadline = time.monotonic() + timeout_s
    wrong = ["no answer yet"]
    while True:
        try:
            wrong = missing_nodes(cluster, api.nodes())
        except RayApiError as error:
            wrong = [str(error)]
        if not wrong:
            return
        if time.monotonic() > deadline:
            break
        pause(1.0)
    raise HostError(
        "Ray does not have all hosts",
        where=cluster.url,
        found="; ".join(wrong[:6]),
        expected=f"{len(cluster.members)} living nodes with {cluster.num_gpus} devices each, at the addresses of the hosts",
        fix="look at the firewall between those hosts and the head, in both directions (verl-musa preflight)",
    )


def missing_nodes(cluster: Cluster, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each host that is not in Ray as it should be, and for each node that is no host of ours."""
    alive = {str(node.get("node_ip")): node for node in nodes if node.get("state") == "ALIVE"}
    dead = {str(node.get("node_ip")): node for node in nodes if node.get("state") == "DEAD"}
    wrong = []
    for member in cluster.members:
        node = alive.get(member.address)
        if node is None:
            why = str((dead.get(member.address) or {}).get("state_message") or "").strip()
            wrong.append(
                f"{member.name} ({member.address}) is {'DEAD' if member.address in dead else 'not there'}"
                + (f": {why[:200]}" if why else "")
            )
            continue
        gpus = int((node.get("resources_total") or {}).get("GPU", 0))
        if gpus != cluster.num_gpus:
            wrong.append(f"{member.name} ({member.address}) offers {gpus} devices")
    ours = {member.address for member in cluster.members}
    return wrong + [f"{address} is none of the hosts" for address in alive if address not in ours]


def take_down(
    cluster: str, hosts: Sequence[Host], fleet: Fleet, progress: Progress, *, timeout_s: float = STOP_S
) -> dict[str, str]:
    """End a cluster on all hosts at once, whatever is left of it. Safe to call again.

    Returns:
        Host -> what could not be done there; empty where all is down.
    """
    check_id(cluster)
    problems: dict[str, str] = {}

    def seen(one: Answered) -> None:
        if not one.ok or one.answer is None:
            problems[one.host] = one.why
            progress(f"{one.host}: not taken down: {one.why}")
            return
        for problem in one.answer["problems"]:
            progress(f"{one.host}: {problem}")
        left = [str(p) for p in one.answer["problems"] if "could not be ended" in str(p)]
        if left:
            problems[one.host] = "; ".join(left)
        ended = one.answer["ended"]
        progress(f"{one.host}: {f'{ended} processes ended' if ended else 'nothing runs'}")

    fleet.call_all(hosts, "stop", lambda _: {"cluster": cluster}, timeout_s=timeout_s, seen=seen)
    return problems


def statuses(cluster: str, hosts: Sequence[Host], fleet: Fleet, *, timeout_s: float = 30.0) -> dict[str, Answered]:  # fmt: skip
    """What each host's agent says of a cluster."""
    return fleet.call_all(hosts, "status", lambda _: {"cluster": check_id(cluster)}, timeout_s=timeout_s)
