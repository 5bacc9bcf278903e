"""The lock of a run's recipe and the provenance of what it runs in: held before the start, kept beside the run."""

from __future__ import annotations

from verl_musa.cluster.software import Software
from verl_musa.errors import ImageError
from verl_musa.fileio import write_json
from verl_musa.image.current import current_image, require_untouched, run_provenance
from verl_musa.image.lock import check_lock, parse_unlocked, require
from verl_musa.observe.display import Display
from verl_musa.recipe import Resolved, load_site
from verl_musa.run import RunOptions
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import ImageFacts, LockFacts, RunRecord


def refuse_changed_image(options: RunOptions, there: Software | None = None) -> None:
    """In an image, here or on the hosts of the run: refuse one that somebody has changed, before anything of it is used.

    Raises:
        ImageError: a package's file is not the one that the image was built with; the message names it.
    """
    if "image" in parse_unlocked(options.unlocked):
        return
    require_untouched()
    if there is not None and there.changed:
        host, changed = next(iter(there.changed.items()))
        others = len(there.changed) - 1
        raise ImageError(
            f"the image on host {host}{f' and {others} other hosts' if others else ''} is not the one that was built",
            where=f"{host}: {changed['where']}",
            found=changed["found"],
            expected="the files that its provenance lists",
            fix="start its container from the image again; let it through for this run with --unlocked image='why'",
        )


def hold(
    options: RunOptions,
    resolved: Resolved,
    record: RunRecord,
    display: Display,
    there: Software | None = None,
) -> None:
    """Refuse a recipe that is not what its lock says, and note in ``record`` how it stands.

    ``there``: what the hosts of a run on several run in.

    Raises:
        ImageError: an item differs and is not let through.
    """
    unlocked = parse_unlocked(options.unlocked)
    display.phase("holding the recipe against its lock")
    locking = check_lock(resolved, load_site(options.site), unlocked, None if there is None else there.items)
    require(locking, resolved.recipe)
    image = current_image(resolved) if there is None else there.image
    record.image = ImageFacts(kind=image["kind"], sha256=image["sha256"])
    record.lock = LockFacts(
        status="locked" if locking.status == "locked" else "unlocked",
        why=locking.why,
        sha256=locking.lock_sha256,
        items={result.check.removeprefix("lock."): result.status.value for result in locking.results},
        unlocked=dict(locking.unlocked),
    )
    for name, why in locking.unlocked.items():
        display.note(f"unlocked: {name} ({why})")


def keep_provenance(run: RunDirectory, there: Software | None = None) -> None:
    """Write ``provenance.json`` of what the run is made in."""
    write_json(run.provenance, dict(run_provenance().facts if there is None else there.provenance))


def shown(record: RunRecord) -> str:
    """How the run stands with its lock, for the report."""
    lock = record.lock
    if lock is None:
        return "-"
    if lock.status == "locked":
        return f"{len(lock.items)} items as locked"
    let_through = "; ".join(f"{name}: {why}" for name, why in lock.unlocked.items())
    return f"unlocked: {lock.why}" + (f" ({let_through})" if let_through else "")
