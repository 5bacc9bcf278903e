"""Several hosts under a job: their agents are asked all at once, every few seconds, beside the following itself."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from verl_musa.cluster.bring_up import Cluster, missing_nodes, statuses
from verl_musa.cluster.deaths import Death, describe_actor
from verl_musa.cluster.fleet import Answered, Fleet
from verl_musa.cluster.jobs_api import JobsApi, RayApiError
from verl_musa.run.ground import Lost, total_steps

POLL_S = 10.0
ASK_S = 25.0
"""Bound of one look at all hosts."""
BLAME_S = 45.0
"""Longest wait for what became of a silent host: Ray calls it dead after about 20 s."""
TWICE = 2
_SMELLS = re.compile(
    r"ActorUnavailable|Socket closed|NodeDied|ObjectLost|OwnerDied|has been unavailable|too many heartbeats|[Nn]ode\b.{0,80}(?:died|dead|removed|unreachable|terminated)"
)
"""What Ray says of an actor whose host went, before it has noticed that itself."""
DRIVER_LINES = 25


class SeveralGround:
    """The hosts of a cluster; see :class:`verl_musa.run.ground.Ground`.

    Args:
        cluster: the cluster that is up.
        fleet: how its agents are asked.
        tell: told what changes with the hosts.
        pause: waits, in :meth:`blame`.
    """

    def __init__(
        self, cluster: Cluster, fleet: Fleet, tell: Callable[[str], None], *, pause: Callable[[float], None] = time.sleep
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self._api = JobsApi(cluster.url)
        self._fleet = fleet
        self._tell = tell
        self._pause = pause
        self._answers: dict[str, Answered] = {}
        self._silent: dict[str, int] = {}
        self._stopped: set[tuple[str, int]] = set()
        self._nodes: list[dict[str, Any]] = []
        self._nodes_ok = False
        self._looking: threading.Thread | None = None
        self._looked = 0.0
        self._lock = threading.Lock()

    @property
    def api(self) -> JobsApi:
        """Ray's own interface."""
        return self._api

    def look(self) -> None:
        """Begin a look at all hosts every ``POLL_S`` seconds, beside what the caller does. Returns at once."""
        busy = self._looking is not None and self._looking.is_alive()
        if busy or time.monotonic() - self._looked < POLL_S:
            return
        self._looked = time.monotonic()
        self._looking = threading.Thread(target=self._ask, daemon=True, name="hosts")
        self._looking.start()

    def _ask(self) -> None:
        try:
            nodes, reached = self._api.nodes(), True
        except RayApiError:
            nodes, reached = [], False
        answers = statuses(self.cluster.cluster, self.cluster.hosts, self._fleet, timeout_s=ASK_S)
        with self._lock:
            if reached:
                self._nodes = nodes
            self._nodes_ok = reached
            for name, one in answers.items():
                before = self._silent.get(name, 0)
                self._silent[name] = 0 if one.ok else before + 1
                if self._silent[name] == 1:
                    self._tell(f"host {name} does not answer: {one.why}")
                elif before and one.ok:
                    self._tell(f"host {name} answers again")
                self._tell_stopped(name, one)
            self._answers = answers

    def _tell_stopped(self, name: str, one: Answered) -> None:
        """Say once of each process that it stands still: a job that waits for it writes nothing of that."""
        for process in (one.answer or {}).get("stopped", ()):
            key = (name, int(process["pid"]))
            if key not in self._stopped:
                self._stopped.add(key)
                self._tell(
                    f"host {name}: process {key[1]} ({process['title']}) is stopped; `kill -CONT {key[1]}` there lets it go on"
                )

    def ended(self) -> tuple[str, str | None] | None:
        """None: where Ray has ended, a host is lost."""
        return None

    def lost(self) -> Lost | None:
        """A host whose Ray has ended; that Ray calls dead; or that is silent, with Ray, for two looks."""
        with self._lock:
            return self._lost(patience=TWICE)

    def _lost(self, *, patience: int) -> Lost | None:
        found: dict[str, str] = {}
        dead = self._dead()
        for member in self.cluster.members:
            one = self._answers.get(member.name)
            silent = self._silent.get(member.name, 0)
            if one is not None and one.ok and one.answer is not None and one.answer["state"] != "up":
                said = str(one.answer.get("ended") or "nothing of it is left there")
                found[member.name] = f"its Ray has ended: {said.splitlines()[-1][:300]}"
            elif member.address in dead:
                ssh = f"; ssh: {one.why}" if one is not None and silent else "; ssh still reaches it"
                found[member.name] = f"Ray calls it DEAD ({dead[member.address]}){ssh}"
            elif (
                silent >= patience and one is not None and member is self.cluster.head and not self._nodes_ok
            ):
                found[member.name] = f"the head answers neither ssh ({one.why}) nor its dashboard"
        return Lost(found) if found else None

    def _dead(self) -> dict[str, str]:
        """Address -> Ray's reason, of hosts that it calls dead and that have not come back."""
        alive = {str(node.get("node_ip")) for node in self._nodes if node.get("state") == "ALIVE"}
        return {
            str(node.get("node_ip")): str(node.get("state_message") or "no reason given")[:200]
            for node in self._nodes
            if node.get("state") == "DEAD" and str(node.get("node_ip")) not in alive
        }

    def blame(self, said: str) -> Lost | None:
        """Ask all hosts until each has said that its Ray runs, one of them is lost, or the bound has run out.

        Where ``said`` smells of a lost host although all answer (a network that is gone, a firewall), Ray gets the whole bound.
        """
        patient = _SMELLS.search(said) is not None
        deadline = time.monotonic() + BLAME_S
        while True:
            if self._looking is not None:
                self._looking.join(ASK_S)
            self._ask()
            with self._lock:
                if lost := self._lost(patience=1):
                    return lost
                silent = {
                    m.name: self._answers[m.name].why
                    for m in self.cluster.members
                    if self._silent.get(m.name)
                }
                well = not silent and self._nodes_ok and not missing_nodes(self.cluster, self._nodes)
            if well and not patient:
                return None
            if time.monotonic() > deadline:
                return (
                    Lost({name: f"it does not answer ssh: {why}" for name, why in silent.items()})
                    if silent
                    else None
                )
            self._pause(2.0)

    def describe(self, actor: Mapping[str, Any]) -> Death:
        """See :class:`~verl_musa.run.ground.Ground`; the last words are fetched from the host, where it answers."""
        death = describe_actor(dict(actor), None)
        host = self._host_of(actor, death.node)
        if host is None:
            return death
        member = next(m for m in self.cluster.members if m.name == host)
        said = self._text(host, worker=death.pid)
        return Death(death.who, death.pid, f"{member.name} ({member.address})", death.cause, said)

    def _host_of(self, actor: Mapping[str, Any], address: str) -> str | None:
        """Name of the host that an actor ran on."""
        by_id = {str(node.get("node_id")): str(node.get("node_ip")) for node in self._nodes}
        wanted = by_id.get(str(actor.get("node_id")), address)
        return next((m.name for m in self.cluster.members if m.address in {wanted, address}), None)

    def _text(self, host: str, **wanted: Any) -> str:
        member = next(m for m in self.cluster.members if m.name == host)
        request = {"cluster": self.cluster.cluster, **wanted}
        one = self._fleet.call(member.host, "logs", request, timeout_s=ASK_S)
        return str(one.answer.get("text", "")) if one.ok and one.answer is not None else ""

    def engine_death(self, *, older_than_s: float) -> Death | None:
        """See :class:`~verl_musa.run.ground.Ground`; times are the host's own."""
        first: tuple[float, str, Mapping[str, Any]] | None = None
        with self._lock:
            for name, one in self._answers.items():
                for engine in (one.answer or {}).get("engines_gone", ()) if one.ok and one.answer else ():
                    ago = float(one.answer["time"]) - float(engine["gone"]) if one.answer else 0.0
                    if ago >= older_than_s and (first is None or ago > first[0]):
                        first = (ago, name, engine)
        if first is None:
            return None
        _, name, engine = first
        return Death(
            who=f"engine process {engine['title']!r} of Ray worker {engine['parent']}",
            pid=int(engine["pid"]),
            node=self.cluster.name_of(next(m.address for m in self.cluster.members if m.name == name)),
            cause="the process vanished (killed, for example by SIGKILL or for lack of memory, or it crashed)",
            last_lines=self._text(name, worker=int(engine["parent"])),
        )

    def driver_said(self, submission_id: str) -> str:
        """See :class:`~verl_musa.run.ground.Ground`; from the Jobs API, else from the head's agent."""
        try:
            lines = [line for line in self._api.job_logs(submission_id).splitlines() if line.strip()]
        except RayApiError:
            return self._text(self.cluster.head.name, job=submission_id, lines=DRIVER_LINES)
        return "\n".join(line[:400] for line in lines[-DRIVER_LINES:])

    def total_steps(self, submission_id: str) -> int | None:
        """See :class:`~verl_musa.run.ground.Ground`."""
        try:
            return total_steps(self._api.job_logs(submission_id))
        except RayApiError:
            return None

    def who(self, actor: Mapping[str, Any]) -> Hashable:
        """Hostname and pid: pids of different hosts may be equal."""
        host = self._host_of(actor, "")
        hostname = next((m.hostname for m in self.cluster.members if m.name == host), "?")
        return hostname, int(actor["pid"])

    def who_proved(self, proof: Mapping[str, Any]) -> Hashable:
        """See :meth:`who`."""
        return str(proof.get("node")), int(proof["pid"])
