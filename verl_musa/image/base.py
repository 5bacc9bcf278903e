"""The base of an image: Debian packages put together here, or an image that a registry, a tar or the engine holds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from verl_musa.errors import ImageError
from verl_musa.fileio import write_atomic
from verl_musa.image.engine import Engine, Progress, run_logged
from verl_musa.image.pins import Base, Pins

DEBIAN = "mmdebstrap"
EPOCH = "1735689600"
"""The date of every file that a build makes, in seconds (2025-01-01): what two builds must not differ in."""

_TRIMMED = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/doc/*")
_KEPT = ("/usr/share/doc/*/copyright",)
MAKE_LIMIT_S = 3600.0


@dataclass(frozen=True)
class BaseImages:
    """What a build starts from.

    Attributes:
        runtime: reference of the image that the result is laid over.
        build: reference of the image with the tools to build; the result keeps nothing of it.
        identity: ``sha256:…`` of the runtime base: a registry digest, or an image id.
        origin: where it came from, for people.
    """

    runtime: str
    build: str
    identity: str
    origin: str


def debian_command(base: Base, packages: list[str], target: Path) -> list[str]:
    """The command that puts a base together, the same files for the same package versions."""
    options = ["--dpkgopt=force-unsafe-io"]  # an image that is cut off while it is made is made again
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in _TRIMMED]
    options += [f"--dpkgopt=path-include={pattern}" for pattern in _KEPT]
    return [
        DEBIAN,
        "--variant=minbase",
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Languages "none"',
        *options,
        base.suite,
        str(target),
        base.mirror,
    ]


def check_base(pins: Pins, given: str | None, cache: Path) -> None:
    """See that the base can be had, as far as that is known before anything is started.

    Raises:
        ImageError: the pinned base has no digest and none is given, or what puts it together is not installed.
    """
    if given is not None:
        return
    if pins.base.source == DEBIAN:
        if not all(_tar_of(pins.base, packages, cache).is_file() for packages in _kinds(pins.base).values()):
            _require_program()
    elif not pins.base.digest:
        raise ImageError(
            f"the base of image {pins.image} has no digest",
            where=pins.where("base", "digest"),
            found='digest = "": nobody has read it off the vendor\'s registry yet',
            expected="the sha256:… of that image, which alone says which bytes it is",
            fix="pull the image, put its digest there (`docker image inspect --format '{{.RepoDigests}}' "
            f"{pins.base.name}`), or give a base you have: --base IMAGE-ID or --base FILE.tar",
        )


def _require_program() -> None:
    if shutil.which(DEBIAN) is None:
        raise ImageError(
            "the base cannot be made here",
            where="PATH",
            found=f"no {DEBIAN}",
            expected=f"{DEBIAN}, which puts the base together from Debian's packages",
            fix=f"apt-get install {DEBIAN}, or give a base of your own with --base",
        )


def prepare_base(
    pins: Pins,
    engine: Engine,
    *,
    given: str | None,
    registry: str | None,
    cache: Path,
    log: Path,
    progress: Progress,
) -> BaseImages:
    """Have the base in the engine.

    Args:
        pins: the image's pins.
        engine: where it is wanted.
        given: ``--base``: an image id, a reference or a tar; None for the pinned one.
        registry: the site's mirror of the pinned base's registry.
        cache: folder for bases that are made here.
        log: the build's log.
        progress: told what is done.

    Raises:
        ImageError: the pinned base has no digest and none is given, or it cannot be had.
    """
    check_base(pins, given, cache)
    if given is not None:
        return _given(given, engine, log, progress)
    if pins.base.source == DEBIAN:
        return _made(pins.base, engine, cache, log, progress)
    return _pulled(pins, engine, registry, log, progress)


def _given(given: str, engine: Engine, log: Path, progress: Progress) -> BaseImages:
    file = Path(given)
    if file.is_file():
        progress(f"loading the base from {file}")
        reference = engine.load(file, log)
        origin = f"tar, sha256:{_sha256(file)}"
    else:
        reference, origin = given, f"given as {given}"
    identity = engine.image_id(reference)
    tag = f"verl-musa-base:{identity.removeprefix('sha256:')[:16]}"
    engine.tag(identity, tag)
    return BaseImages(tag, tag, identity, origin)


def _made(base: Base, engine: Engine, cache: Path, log: Path, progress: Progress) -> BaseImages:
    kinds = _kinds(base)
    with ThreadPoolExecutor(len(kinds)) as pool:  # both mostly wait for the mirror and the disk
        made = {kind: pool.submit(_debian_tar, base, packages, cache, log.with_suffix(f".{kind}.log"), progress)
                for kind, packages in kinds.items()}  # fmt: skip
        tars = {kind: job.result() for kind, job in made.items()}
    tags = {kind: f"verl-musa-base-{kind}:{_sha256(tar)[:16]}" for kind, tar in tars.items()}
    for kind, tag in tags.items():
        if not engine.has(tag):
            progress(f"importing the {kind} base")
            engine.import_tar(tars[kind], tag, log)
    identity = f"sha256:{_sha256(tars['runtime'])}"
    return BaseImages(
        tags["runtime"], tags["build"], identity, f"{base.suite} by {DEBIAN}, digest of its tar"
    )


def _kinds(base: Base) -> dict[str, list[str]]:
    """Debian packages of the base that the result is laid over, and of the one that builds."""
    return {"runtime": list(base.packages), "build": [*base.packages, *base.build_packages]}


def _tar_of(base: Base, packages: list[str], cache: Path) -> Path:
    key = hashlib.sha256(json.dumps([*debian_command(base, packages, Path("base.tar")), EPOCH]).encode())
    return cache / f"debian-{key.hexdigest()[:16]}.tar"


def _debian_tar(base: Base, packages: list[str], cache: Path, log: Path, progress: Progress) -> Path:
    """The tar of a base, made once for each list of packages and suite."""
    target = _tar_of(base, packages, cache)
    if target.is_file():
        return target
    progress(f"making a base of {len(packages)} Debian packages and what they need")
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{os.getpid()}-{target.name}")
    try:
        run_logged(
            debian_command(base, packages, unfinished),
            log,
            what="base",
            limit=MAKE_LIMIT_S,
            env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        )
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _pulled(pins: Pins, engine: Engine, registry: str | None, log: Path, progress: Progress) -> BaseImages:
    base = pins.base
    name = base.name if registry is None else mirrored(base.name, registry)
    reference = f"{name.rpartition(':')[0] if ':' in name.rpartition('/')[2] else name}@{base.digest}"
    progress(f"pulling {reference}")
    engine.pull(reference, log)
    identity = engine.image_id(reference)
    tag = f"verl-musa-base:{identity.removeprefix('sha256:')[:16]}"
    engine.tag(identity, tag)
    return BaseImages(tag, tag, base.digest, f"pulled from {name}")


def mirrored(name: str, registry: str) -> str:
    """``name`` on another registry: the host, its first part, is replaced."""
    return f"{registry.rstrip('/')}/{name.partition('/')[2]}"


def _sha256(file: Path) -> str:
    """Digest of a tar, kept beside it: bases are read more often than made."""
    note = file.with_name(f"{file.name}.sha256")
    if note.is_file() and note.stat().st_mtime_ns >= file.stat().st_mtime_ns:
        return note.read_text(encoding="ascii").split()[0]
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if os.access(file.parent, os.W_OK):
        write_atomic(note, f"{digest}  {file.name}\n")
    return digest
