"""What a follower sees of the hosts that its job runs on: one host here; several in :mod:`verl_musa.run.several_ground`."""

from __future__ import annotations

import platform
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verl_musa.cluster.deaths import Death, EngineWatch, describe_actor, driver_log, indented
from verl_musa.cluster.jobs_api import JobsApi
from verl_musa.cluster.local_ray import LocalRay
from verl_musa.cluster.processes import OwnedProcesses

_TOTAL = re.compile(r"Total training steps: (\d+)")


@dataclass(frozen=True)
class Lost:
    """Hosts that a run can no longer use: name -> why, in words for people."""

    hosts: Mapping[str, str]

    def __str__(self) -> str:
        return "; ".join(f"host {name} is lost: {why}" for name, why in self.hosts.items())


class Ground(Protocol):
    """The hosts of a job, as a follower needs them."""

    @property
    def api(self) -> JobsApi:
        """Ray's own interface."""
        ...

    def look(self) -> None:
        """Note which processes are there now. Never waits for a host."""
        ...

    def ended(self) -> tuple[str, str | None] | None:
        """That Ray itself has ended, and what it said; None while it lives."""
        ...

    def lost(self) -> Lost | None:
        """Hosts that are lost, as far as the last look tells."""
        ...

    def blame(self, said: str) -> Lost | None:
        """The same once something has gone wrong: asks all hosts, and waits for their answers within a bound.

        ``said``: the words of what went wrong; where they smell of a lost host, Ray is given the time to notice it.
        """
        ...

    def describe(self, actor: Mapping[str, Any]) -> Death:
        """Who a dead actor was, and its last words."""
        ...

    def engine_death(self, *, older_than_s: float) -> Death | None:
        """The engine process that vanished first, once that is ``older_than_s`` seconds ago."""
        ...

    def driver_said(self, submission_id: str) -> str:
        """The last lines of the job's driver."""
        ...

    def total_steps(self, submission_id: str) -> int | None:
        """The number of training steps, once the driver has said it."""
        ...

    def who(self, actor: Mapping[str, Any]) -> Hashable:
        """What tells an actor's process from all others of the run."""
        ...

    def who_proved(self, proof: Mapping[str, Any]) -> Hashable:
        """The same of the process that wrote a proof."""
        ...


class LocalGround:
    """One host: this one.

    Args:
        ray: the Ray that the job runs in.
        owned: the run's processes.
    """

    def __init__(self, ray: LocalRay, owned: OwnedProcesses) -> None:
        self.ray = ray
        self._owned = owned
        self._engines = EngineWatch(platform.node())

    @property
    def api(self) -> JobsApi:
        """Ray's own interface."""
        return self.ray.api

    def look(self) -> None:
        """See :class:`Ground`."""
        self._engines.look(self._owned.refresh())

    def ended(self) -> tuple[str, str | None] | None:
        """See :class:`Ground`."""
        code = self.ray.exit_code()
        if code is None:
            return None
        session = self.ray.session_dir
        said = (session / "logs" / "ray_process_exit.log") if session else None
        text = said.read_text(encoding="utf-8", errors="replace") if said and said.exists() else ""
        found = "\n" + indented(text[-2000:]) if text.strip() else None
        return f"Ray itself ended with code {code} while the job ran", found

    def lost(self) -> Lost | None:
        """See :class:`Ground`; the only host is never lost."""
        return None

    def blame(self, said: str) -> Lost | None:  # noqa: ARG002
        """See :class:`Ground`."""
        return None

    def describe(self, actor: Mapping[str, Any]) -> Death:
        """See :class:`Ground`."""
        return describe_actor(dict(actor), self.ray.session_dir)

    def engine_death(self, *, older_than_s: float) -> Death | None:
        """See :class:`Ground`."""
        return self._engines.first_death(older_than_s=older_than_s, session_dir=self.ray.session_dir)

    def driver_said(self, submission_id: str) -> str:
        """See :class:`Ground`."""
        return driver_log(self.ray.session_dir, submission_id) if self.ray.session_dir else ""

    def total_steps(self, submission_id: str) -> int | None:
        """See :class:`Ground`."""
        session: Path | None = self.ray.session_dir
        if session is None:
            return None
        try:
            text = (session / "logs" / f"job-driver-{submission_id}.log").read_text(encoding="utf-8", errors="replace")  # fmt: skip
        except OSError:
            return None
        return total_steps(text)

    def who(self, actor: Mapping[str, Any]) -> Hashable:
        """See :class:`Ground`."""
        return int(actor["pid"])

    def who_proved(self, proof: Mapping[str, Any]) -> Hashable:
        """See :class:`Ground`."""
        return int(proof["pid"])


def total_steps(text: str) -> int | None:
    """The number of training steps in what verl's driver wrote; None where it has not said it."""
    found = _TOTAL.search(text)
    return int(found[1]) if found else None
