"""An image as a file: written with its checksum and provenance, loaded only when both fit."""

from __future__ import annotations

import tempfile
from pathlib import Path

from verl_musa.errors import ImageError
from verl_musa.fileio import write_atomic, write_json
from verl_musa.image.engine import Engine
from verl_musa.image.inside import listing_of, provenance_of
from verl_musa.image.tree import content_hash, sha256


def checksum_file(tar: Path) -> Path:
    """Where the checksum of a saved image lies; `sha256sum -c` reads it."""
    return tar.with_name(f"{tar.name}.sha256")


def save_image(engine: Engine, reference: str, target: Path) -> str:
    """Write an image; return the checksum of its file.

    Raises:
        ImageError: the engine has no such image, it has no provenance, or the file cannot be written.
    """
    found = provenance_of(engine, reference)
    unfinished = target.with_name(f".{target.name}.new")
    try:
        engine.save(reference, unfinished)
        digest = sha256(unfinished)
        unfinished.rename(target)
    except OSError as error:
        raise ImageError("the image cannot be written", where=str(target), found=str(error)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    write_atomic(checksum_file(target), f"{digest}  {target.name}\n")
    write_json(target.with_name(f"{target.name}.json"), dict(found.facts))
    return digest


def load_image(engine: Engine, source: Path) -> tuple[str, str]:
    """Load a saved image; return its name and content hash.

    Raises:
        ImageError: the checksum is missing or does not fit, or the image is not what its provenance says.
    """
    check_file(source)
    with tempfile.NamedTemporaryFile(prefix="verl-musa-load-", suffix=".log") as log:
        reference = engine.load(source, Path(log.name))
    recorded = provenance_of(engine, reference).content
    actual = content_hash(listing_of(engine, reference))
    if actual != recorded:
        raise ImageError(
            "the loaded image is not what its provenance says",
            where=reference,
            found=actual,
            expected=recorded,
            fix=f"verl-musa image verify {reference} names the files",
        )
    return reference, actual


def check_file(source: Path) -> None:
    """Hold a file against the checksum beside it.

    Raises:
        ImageError: there is none, or it does not fit.
    """
    try:
        expected = checksum_file(source).read_text(encoding="ascii").split()[0]
        found = sha256(source)
    except (OSError, IndexError, UnicodeDecodeError) as error:
        raise ImageError(
            "the saved image cannot be checked",
            where=str(source),
            found=str(error),
            expected=f"the file and {checksum_file(source).name} beside it",
            fix="copy both again from the machine that saved it",
        ) from error
    if found != expected:
        raise ImageError(
            "the file is not the one that was saved",
            where=str(source),
            found=f"sha256:{found}",
            expected=f"sha256:{expected}",
            fix="copy it again",
        )
