"""The recipe's lock: image and patches as the head has them, files as this machine sees them; other checks compare the hosts."""

from __future__ import annotations

from verl_musa.checks import Result, Status
from verl_musa.cluster.fleet import Fleet
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.software import software_of
from verl_musa.cluster.ssh import Remote
from verl_musa.errors import VerlMusaError
from verl_musa.image.lock import check_lock, read_entry
from verl_musa.recipe import Resolved, Site


def lock_results(resolved: Resolved, site: Site, remote: Remote, head: Host) -> list[Result]:
    """One result for each item of the lock; one alone where there is no lock, or it cannot be held."""
    try:
        there = None
        if read_entry(resolved.recipe) is not None:
            there = software_of(Fleet(remote, site.python), [head], resolved.recipe.extras).items
        locking = check_lock(resolved, site, {}, there)
    except VerlMusaError as error:
        seen = "; ".join(part for part in (error.message, error.where, error.found) if part)
        return [
            _entry(
                Status.UNKNOWN,
                f"cannot be held here: {seen}",
                error.fix or "run preflight where the recipe's files are",
            )
        ]
    if not locking.results:
        return [
            _entry(
                Status.WARN,
                locking.why,
                f"verl-musa recipe lock {resolved.recipe.title}, once this state is the accepted one",
            )
        ]
    return [_entry(Status.OK, f"entry sha256:{locking.lock_sha256[:16]}", ""), *locking.results]


def _entry(status: Status, evidence: str, fix: str) -> Result:
    return Result(
        check="lock.entry",
        looks_at="entry of the recipe in recipe.lock",
        status=status,
        evidence=evidence,
        fix=fix,
    )
