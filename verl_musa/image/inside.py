"""An image looked at from outside: what it says of itself, whether that is so, and what its own checks say inside it."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verl_musa.checks import Check, Finding, Result, Status, fail, ok, run_checks
from verl_musa.errors import ImageError
from verl_musa.image.engine import Engine
from verl_musa.image.provenance import FILES, PROVENANCE, Provenance, parse_provenance
from verl_musa.image.tree import SHARE, Listing, content_hash, differing, list_tar

INSIDE_LIMIT_S = 1800.0
SHOWN = 10


def provenance_of(engine: Engine, reference: str) -> Provenance:
    """What an image says of itself.

    Raises:
        ImageError: it says nothing, or what cannot be so.
    """
    files = engine.read(reference, f"/{SHARE}")
    if PROVENANCE not in files or FILES not in files:
        raise ImageError(
            "this image has no provenance",
            where=reference,
            found=f"no {PROVENANCE} in /{SHARE}",
            expected="an image that `nox -s build_image` made",
            fix="build it anew",
        )
    return parse_provenance(
        json.loads(files[PROVENANCE]), json.loads(gzip.decompress(files[FILES])), reference
    )


def listing_of(engine: Engine, reference: str) -> Listing:
    """What an image holds, read from outside, so that nothing in it has a say."""
    with engine.export(reference) as stream:
        return list_tar(stream)


def verify_image(engine: Engine, reference: str, listing: Listing | None = None) -> list[Result]:
    """Hold an image against its provenance from outside, and run its own checks inside it.

    Args:
        engine: what has the image.
        reference: its name or id.
        listing: what it holds, where that was just read; None: it is read here.
    """
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(_inside, engine, reference)
        return [*run_checks([CONTENT], (engine, reference, listing)), *inside.result()]


def _check_content(subject: tuple[Engine, str, Listing | None]) -> Finding:
    engine, reference, listing = subject
    found = provenance_of(engine, reference)
    return compare(found, listing_of(engine, reference) if listing is None else listing)


CONTENT = Check("image.filesystem", "every file of the image, read from outside", _check_content)


def compare(recorded: Provenance, listing: Listing) -> Finding:
    """Hold a listing against the recorded one."""
    actual = content_hash(listing)
    if actual == recorded.content:
        return ok(f"{len(listing)} entries, sha256:{actual}")
    changed = differing(recorded.files, listing)
    shown = ", ".join(describe(path, recorded.files, listing) for path in changed[:SHOWN])
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return fail(
        f"{len(changed)} differ from the provenance: {shown}{more}",
        "use an image that nobody has changed: build it again, or load it again",
        changed[0],
    )


def describe(path: str, before: Listing, after: Listing) -> str:
    """``PATH (changed)``, with what happened to it."""
    if path not in after:
        return f"{path} (missing)"
    return f"{path} ({'added' if path not in before else 'changed'})"


def _inside(engine: Engine, reference: str) -> list[Result]:
    done = engine.run(
        reference, ["verl-musa", "image", "verify", "--json", "--no-filesystem"], limit=INSIDE_LIMIT_S
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
        return [Result(**{**entry, "status": Status(entry["status"])}) for entry in answer["checks"]]
    except (ValueError, KeyError, TypeError):
        tail = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        return [
            Result(
                check="image.inside",
                looks_at="the image's own checks",
                status=Status.FAIL,
                evidence=f"they gave no answer (exit {done.returncode}): {tail[:300]}",
                fix=f"docker run --rm {reference} verl-musa image verify",
            )
        ]
