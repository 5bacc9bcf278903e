"""Preflight: are these hosts fit to run this recipe together? Looks over ssh at all of them at once and starts nothing.

Public face: :func:`look` and :func:`run_preflight`; :func:`render` prints what they find. docs/preflight.md says what each check
looks at.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from verl_musa.checks import Result, Status
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight import (
    check_device,
    check_host,
    check_net,
    check_path,
    check_ray,
    check_version,
)
from verl_musa.cluster.preflight.locking import lock_results
from verl_musa.cluster.preflight.phases import (
    Asking,
    Bounds,
    Say,
    clocks_to_head,
    gather_facts,
    look_at_files,
    make_calls,
)
from verl_musa.cluster.preflight.table import render
from verl_musa.cluster.preflight.view import Clock, View, check_hosts, training_address
from verl_musa.cluster.ssh import Remote
from verl_musa.errors import HostError
from verl_musa.fileio import write_json
from verl_musa.recipe import UNSET, Resolved, Site

__all__ = ["CHECKS", "Bounds", "Preflight", "check_ids", "look", "render", "run_preflight", "write_clocks"]

CHECKS = (
    *check_host.CHECKS,
    *check_net.CHECKS,
    *check_ray.CHECKS,
    *check_path.CHECKS,
    *check_version.CHECKS,
    *check_device.CHECKS,
)
CLOCKS_SCHEMA = 1


@dataclass(frozen=True)
class Preflight:
    """What was found.

    Attributes:
        results: one for each check and host; ``host`` names it.
        addresses: host -> its address in the training network, for those that have one.
        clocks: host -> its clock against the head's.
        view: all that the hosts said.
    """

    results: list[Result]
    addresses: Mapping[str, str]
    clocks: Mapping[str, Clock]
    view: View

    @property
    def failed(self) -> list[Result]:
        """What stops a run."""
        return [result for result in self.results if result.status is Status.FAIL]


def check_ids() -> list[str]:
    """The ids of all checks that may be in the results, in their order."""
    from verl_musa.image.lock import ITEMS

    return [
        check_host.SSH.name,
        *(check.name for check in CHECKS),
        "lock.entry",
        *(f"lock.{item}" for item in ITEMS),
    ]


def run_preflight(
    site: Site,
    hosts: Sequence[Host],
    resolved: Resolved | None,
    remote: Remote,
    display: Say = lambda _: None,
) -> list[Result]:
    """The results of :func:`look`."""
    return look(site, hosts, resolved, remote, display).results


def look(
    site: Site,
    hosts: Sequence[Host],
    resolved: Resolved | None,
    remote: Remote,
    display: Say = lambda _: None,
    *,
    run_dir: Path | None = None,
    run_id: str | None = None,
    bounds: Bounds = Bounds(),  # noqa: B008  (frozen)
    hold_lock: bool = True,
) -> Preflight:
    """Look at all hosts. One ssh for each host and phase; nothing is started, one file in the shared folder comes and goes.

    Args:
        site: the site.
        hosts: the hosts of the run, the head first.
        resolved: the recipe; None: the hosts by themselves.
        remote: how they are reached.
        display: told in a few words what is being done.
        run_dir: the run directory of a run that is about to start: checked for its place, and given the hosts' clocks if it is there.
        run_id: that run; a Ray of its own that is up already is no fault.
        bounds: how long a host may take.
        hold_lock: also hold the recipe against its lock, with what the head runs in.

    Raises:
        HostError: ``hosts`` is empty or does not begin with the head.
    """
    everybody = tuple(hosts)
    if not everybody or not everybody[0].head:
        raise HostError("preflight wants the head first among its hosts", found=", ".join(host.name for host in hosts) or "no hosts",
                        expected="what hosts_of() returns", fix="please report this")  # fmt: skip
    asking = Asking(site, everybody, remote, bounds, display)
    facts = gather_facts(asking, site.python or sys.executable)
    view = View(site, everybody, resolved, facts.done, facts.parts, run_dir=run_dir, run_id=run_id)
    addresses, lacking = _addresses(view)
    view = replace(view, addresses=addresses, lacking=lacking)
    with ThreadPoolExecutor(max_workers=2) as pool:  # the two wait for the slowest host most of the time
        calls = pool.submit(make_calls, asking, facts, _on_their_hosts(view))
        files = pool.submit(look_at_files, asking, resolved, facts)
        mesh, (data, errors) = calls.result(), files.result()
    view = replace(
        view,
        mesh=mesh,
        clocks=clocks_to_head(everybody, facts, mesh),
        data=data,
        data_errors=errors,
    )
    results = check_hosts((check_host.SSH,), view, everybody) + check_hosts(CHECKS, view, view.answering)
    if resolved is not None and hold_lock:
        display("holding the recipe against its lock")
        results += lock_results(resolved, site, remote, everybody[0])
    if run_dir is not None and (run_dir / "logs").is_dir():
        write_clocks(run_dir / "logs" / "clocks.json", view.clocks)
    return Preflight(results, view.addresses, view.clocks, view)


def _addresses(view: View) -> tuple[dict[str, str], dict[str, str]]:
    network = None if view.resolved is None else view.resolved.recipe.network
    wanted = (
        None
        if network is None or network.interface is None or network.interface.startswith(UNSET)
        else network.interface
    )
    addresses, lacking = {}, {}
    for host in view.answering:
        address, why = training_address(view.site, host, view.parts[host.name], wanted)
        if address is None:
            lacking[host.name] = why
        else:
            addresses[host.name] = address
    return addresses, lacking


def _on_their_hosts(view: View) -> dict[str, str]:
    """The addresses that hosts can be called by: calls to others would say nothing but what net.address or net.management says."""
    return {host.name: view.addresses[host.name] for host in view.answering if view.sound(host)}


def write_clocks(path: Path, clocks: Mapping[str, Clock]) -> None:
    """Write the hosts' clocks as triage reads them (docs/run-directory.md); those of other hosts, of an earlier attempt, stay."""
    hosts = _written_clocks(path) | {
        name: {
            "ahead_s": round(clock.ahead, 4),
            "within_s": round(clock.within, 4),
            "utc_offset_s": clock.utc_offset,
        }
        for name, clock in clocks.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"schema": CLOCKS_SCHEMA, "hosts": hosts})


def _written_clocks(path: Path) -> dict[str, object]:
    try:
        hosts = json.loads(path.read_text(encoding="utf-8"))["hosts"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # none, or of no use to anybody
    return dict(hosts) if isinstance(hosts, dict) else {}
