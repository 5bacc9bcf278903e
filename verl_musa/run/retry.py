"""Which hosts a run goes on with that has lost one: those that are left, spares, and lost ones that have come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from verl_musa.cluster.fleet import Fleet, try_members
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight import look, write_clocks
from verl_musa.cluster.ssh import Remote
from verl_musa.errors import HostLostError, JobFailedError
from verl_musa.observe.display import Display
from verl_musa.recipe import Recipe
from verl_musa.run import RunOptions
from verl_musa.run.directory import RunDirectory
from verl_musa.run.layout import Layout

LOOK_S = 10.0


@dataclass
class Search:
    """Looks for hosts for the next attempt of a run.

    Attributes:
        run: the run.
        options: what the user asked for.
        recipe: its recipe, as written.
        remote: how hosts are reached.
        display: where it tells what it waits for.
        check_stop: raises where somebody asked to stop the run.
        return_s: longest wait for a host, in seconds.
    """

    run: RunDirectory
    options: RunOptions
    recipe: Recipe
    remote: Remote
    display: Display
    check_stop: Callable[[], None]
    return_s: float
    _unfit: dict[str, str] = field(default_factory=dict)
    """Host -> what the last preflight found wrong with it."""

    def hosts(self, layout: Layout, error: HostLostError) -> Layout:
        """As many hosts as before that answer and pass preflight; waits for them within the bound.

        Raises:
            JobFailedError: there are not enough of them within it, or the head is not among them.
        """
        deadline = time.monotonic() + self.return_s
        fleet = Fleet(self.remote, layout.site.python)
        nodes, head = len(layout.hosts), layout.hosts[0].name
        while True:
            self.check_stop()
            found, wrong = try_members(fleet, layout.everybody, layout.site, time.time)
            usable = {member.name for member in found}
            fitting = [host for host in self._order(layout, head, error.lost) if host.name in usable]
            if len(fitting) >= nodes and fitting[0].name == head:
                chosen = layout.on(fitting[:nodes])
                if self._passes(chosen):
                    names = ", ".join(host.name for host in chosen.hosts)
                    self.display.note(f"goes on with {names}")
                    return chosen
            why = self._unfit | {name: one.message for name, one in wrong.items()}
            shown = "; ".join(f"{name}: {one}" for name, one in why.items())
            if time.monotonic() > deadline:
                raise self._given_up(fitting, nodes, head, shown, error) from error
            self.display.phase(f"a host to come back: {len(fitting)} of {nodes} are usable ({shown})")
            time.sleep(LOOK_S)

    def _order(self, layout: Layout, head: str, lost: Sequence[str]) -> list[Host]:
        """The head, then whoever has not been lost; those that did not pass come last."""
        return sorted(
            layout.everybody,
            key=lambda host: (host.name != head, host.name in self._unfit, host.name in lost),
        )

    def _passes(self, layout: Layout) -> bool:
        """Preflight of these hosts: a spare was not looked at before, and one that came back may have changed. Keeps their clocks."""
        resolved = layout.resolve(self.recipe, self.run.path, self.options.sets)
        found = look(
            layout.site,
            layout.hosts,
            resolved,
            self.remote,
            self.display.phase,
            run_dir=self.run.path,
            run_id=self.run.path.name,
            hold_lock=False,
        )
        write_clocks(self.run.clocks, found.clocks)
        self._unfit = {}
        for result in found.failed:
            self.display.note(f"FAIL {result.host} {result.check}: {result.evidence} -> {result.fix}")
            self._unfit.setdefault(result.host or "?", f"{result.check}: {result.evidence}")
        return not self._unfit

    def _given_up(
        self, fitting: Sequence[Host], nodes: int, head: str, found: str, error: HostLostError
    ) -> JobFailedError:
        if len(fitting) < nodes:
            message = f"too few hosts are left to go on: {len(fitting)} of {nodes}"
        elif fitting[0].name != head:
            message = f"the head {head} has not come back"
        else:
            message = "the hosts that are left do not pass preflight"
        return JobFailedError(
            message,
            where=", ".join(self._unfit or error.lost),
            found=found,
            expected=f"{nodes} hosts with {head} among them, within {self.return_s / 60:.0f} minutes",
            fix=f"mend the host or name another one, then `verl-musa resume {self.run.path.name} --hosts …`",
        )
