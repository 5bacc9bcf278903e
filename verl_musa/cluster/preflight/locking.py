"""The recipe's lock, held here on this machine: whatever differs between hosts is the business of the other checks."""

from __future__ import annotations

from verl_musa.checks import Result, Status
from verl_musa.errors import VerlMusaError
from verl_musa.image.lock import check_lock
from verl_musa.recipe import Resolved, Site


def lock_results(resolved: Resolved, site: Site) -> list[Result]:
    """One result for each item of the lock; one alone where there is no lock, or it cannot be held here."""
    try:
        locking = check_lock(resolved, site, {})
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
