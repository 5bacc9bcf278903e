"""From pins to a verified image: check, fetch, put the context together, build without a network, normalise, verify inside."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verl_musa import __version__
from verl_musa.checks import Result, Status
from verl_musa.errors import ImageError
from verl_musa.fileio import write_json
from verl_musa.image.base import BaseImages, check_base, prepare_base
from verl_musa.image.engine import Engine, Progress, find_engine
from verl_musa.image.inside import provenance_of, verify_image
from verl_musa.image.normalise import normalise
from verl_musa.image.pins import COMMON, Pins, load_pins
from verl_musa.image.provenance import BUILD
from verl_musa.image.tree import Listing
from verl_musa.image.wheels import TOOLS, VENDOR, Locked, check_locks, fetch
from verl_musa.patching import load_series

GIT_S = 20.0
USERS = ("root", "verl")
_STEP = re.compile(
    r"^#\d+ \[(?P<stage>[\w-]+) +(?P<number>\d+/\d+)\] (?P<text>.*)$|^(?P<legacy>Step \d+/\d+) : (?P<command>.*)$"
)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What a user asks of ``verl-musa image build``.

    Attributes:
        image: name of the image.
        base: a base of the user's own instead of the pinned one: image id, reference or tar.
        no_cache: run every step again.
        tag: name of the result; None for ``verl-musa-IMAGE:VERSION``.
        run_as: user of the image, ``root`` or ``verl``.
        registry: the site's mirror of the base's registry.
        cache: folder for bases and fetched packages; None for the user's cache.
    """

    image: str
    base: str | None = None
    no_cache: bool = False
    tag: str | None = None
    run_as: str = "root"
    registry: str | None = None
    cache: Path | None = None


@dataclass(frozen=True)
class Built:
    """A finished build.

    Attributes:
        reference: name of the image.
        image_id: its id.
        content: its content hash.
        results: what the checks inside the image found.
        log: the build's log.
    """

    reference: str
    image_id: str
    content: str
    results: list[Result]
    log: Path


def default_cache() -> Path:
    """The user's cache of bases and fetched packages."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl-musa" / "image"


def build_image(options: BuildOptions, progress: Progress) -> Built:
    """Build an image and verify it.

    Raises:
        ImageError: the pins, the locks or the base do not fit, a step failed, or a check inside the image did.
    """
    if options.run_as not in USERS:
        raise ImageError(
            "no such user in the images", where="--run-as", found=options.run_as, expected=" or ".join(USERS)
        )
    progress = timed(progress)
    cache = options.cache or default_cache()
    (cache / "logs").mkdir(parents=True, exist_ok=True)
    log = cache / "logs" / f"{options.image}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.log"
    pins = load_pins(options.image)
    progress(f"1/7 pins and locks of image {pins.image}; log {log}")
    locks = check_locks(pins)
    engine = find_engine()
    progress(f"2/7 base, for Docker Engine {engine.version} with the {engine.builder} builder")
    check_base(pins, options.base, cache / "bases")
    progress("3/7 beside it the packages, by the hashes of the locks")
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(fetch, pins, locks, cache / "wheels", log.with_suffix(".fetch.log"), progress)
        base = prepare_base(
            pins,
            engine,
            given=options.base,
            registry=options.registry,
            cache=cache / "bases",
            log=log,
            progress=progress,
        )
        progress(f"    base {base.identity} ({base.origin})")
        wheels = fetching.result()
    reference = options.tag or f"verl-musa-{pins.image}:{__version__}"
    with tempfile.TemporaryDirectory(prefix="context-", dir=cache) as folder:
        context = Path(folder)
        progress("4/7 context")
        facts = build_facts(pins, base, locks, engine)
        write_context(context, pins, locks, wheels, facts)
        progress("5/7 build, without a network")
        _build(engine, context, base, options, reference=reference, facts=facts, log=log, progress=progress)
    listing = None
    if pins.normalise:
        progress("6/7 one layer with fixed dates, so that equal content has an equal id")
        listing = normalise(engine, reference, log)
    else:
        progress("6/7 left as built: the pins do not ask for a normalised image")
    progress("7/7 checks inside the image")
    return _verified(engine, reference, log, listing)


def timed(progress: Progress) -> Progress:
    """``progress`` with the seconds since now before each line."""
    started = time.monotonic()
    return lambda text: progress(f"{time.monotonic() - started:5.0f} s  {text}")


def _build(
    engine: Engine,
    context: Path,
    base: BaseImages,
    options: BuildOptions,
    *,
    reference: str,
    facts: Mapping[str, Any],
    log: Path,
    progress: Progress,
) -> None:
    labels = {
        "org.opencontainers.image.title": f"verl-musa {options.image}",
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.revision": facts["git"]["commit"] or "",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.base.digest": base.identity,
        "verl-musa.series": facts["series"],
    }
    arguments = [
        "--tag",
        reference,
        "--build-arg",
        f"BASE={base.runtime}",
        "--build-arg",
        f"BUILD_BASE={base.build}",
    ]
    arguments += ["--build-arg", f"RUN_AS={options.run_as}"]
    arguments += [part for name, value in labels.items() for part in ("--label", f"{name}={value}")]
    if options.no_cache:
        arguments.append("--no-cache")

    def step(line: str) -> None:
        match = _STEP.match(line)
        if match:
            name = f"{match['stage']} {match['number']}" if match["stage"] else match["legacy"]
            progress(f"    {name}: {(match['text'] or match['command'])[:90]}")

    engine.build(context, arguments, log, step)


def _verified(engine: Engine, reference: str, log: Path, listing: Listing | None) -> Built:
    results = verify_image(engine, reference, listing)
    found = provenance_of(engine, reference)
    failed = [result for result in results if result.status is Status.FAIL]
    built = Built(reference, engine.image_id(reference), found.content, results, log)
    if failed:
        raise ImageError(
            f"the image was built, but {len(failed)} of {len(results)} checks inside it failed",
            where=reference,
            found="; ".join(f"{result.check}: {result.evidence}" for result in failed[:3]),
            expected="no failed check",
            fix=f"{failed[0].fix or 'look at'} ({log}); verl-musa image verify {reference}",
        )
    return built


def build_facts(
    pins: Pins, base: BaseImages, locks: Mapping[str, list[Locked]], engine: Engine
) -> dict[str, Any]:
    """What only the builder knows, kept in the image as ``build.json``."""
    root = pins.folder.parents[1]
    return {
        "image": pins.image,
        "base": {"identity": base.identity, "origin": base.origin, "pinned": pins.base.model_dump()},
        "engine": {"version": engine.version, "builder": engine.builder},
        "git": git_state(root),
        "series": load_series().digest,
        "python": pins.python,
        "vendor": list(pins.layers.vendor),
        "aside": list(pins.layers.aside),
        "pins": {
            section: {name: package.model_dump() for name, package in getattr(pins, section).items()}
            for section in ("packages", "beside", "hardware")
        },
        "requirements": {
            layer: {entry.name: {"version": entry.version, "sha256": list(entry.hashes)} for entry in lock}
            for layer, lock in locks.items()
        },
    }


def git_state(root: Path) -> dict[str, Any]:
    """Commit of the checkout and whether it has changes; None where that cannot be told."""
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def write_context(
    context: Path,
    pins: Pins,
    locks: Mapping[str, list[Locked]],
    wheels: Mapping[str, list[Path]],
    facts: Mapping[str, Any],
) -> None:
    """Put together what the engine gets to see: nothing of the checkout but what is installed.

    Raises:
        ImageError: a folder of ``[layers] checkout`` is missing.
    """
    images, root = pins.folder.parent, pins.folder.parents[1]
    (context / "Dockerfile").write_text(dockerfile(pins), encoding="utf-8")
    shutil.copytree(
        images / COMMON, context / "common", ignore=shutil.ignore_patterns("lock", "requirements-*")
    )
    for kind in (TOOLS, VENDOR, "layers"):
        (context / "wheels" / kind).mkdir(parents=True)
    for kind in ("main", "aside"):
        (context / "locks" / kind).mkdir(parents=True)
    for number, (layer, lock) in enumerate(locks.items()):
        single = layer in (TOOLS, VENDOR)
        kind = "main" if layer in pins.layers.main else "aside"
        target = (
            f"{layer}.txt" if single else f"{kind}/{f'{number:02}-' if kind == 'main' else ''}{layer}.txt"
        )
        (context / "locks" / target).write_text(
            "".join(f"{entry.text}\n" for entry in lock), encoding="utf-8"
        )
        for file in wheels[layer]:
            _link(file, context / "wheels" / (layer if single else "layers") / file.name)
    (context / "facts").mkdir()
    write_json(context / "facts" / BUILD, dict(facts))
    for kind, folders in (("main", pins.layers.checkout), ("vendor", pins.layers.vendor_checkout)):
        (context / "checkout" / kind).mkdir(parents=True)
        for folder in folders:
            _copy_checkout(root, folder, context / "checkout" / kind)
    _settle_dates(context)


def dockerfile(pins: Pins) -> str:
    """The whole Dockerfile of an image: its own vendor stages, then those that all images share."""
    images = pins.folder.parent
    return "".join(
        (folder / "Dockerfile").read_text(encoding="utf-8") for folder in (pins.folder, images / COMMON)
    )


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


_SKIPPED = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.pyc", "build", "dist", ".*_cache")
_OWN_PARTS = ("verl_musa", "patches", "pyproject.toml", "README.md", "LICENSE")


def _copy_checkout(root: Path, folder: str, target: Path) -> None:
    source = (root / folder).resolve()
    if not (source / "pyproject.toml").is_file():
        raise ImageError(
            "not a package of this checkout", where=str(source), expected="a folder with pyproject.toml"
        )
    goal = target / (source.name if source != root else "verl-musa")
    if source != root:
        shutil.copytree(source, goal, ignore=_SKIPPED)
        return
    goal.mkdir()
    for part in _OWN_PARTS:
        if (root / part).is_dir():
            shutil.copytree(root / part, goal / part, ignore=_SKIPPED)
        else:
            shutil.copyfile(root / part, goal / part)


def _settle_dates(context: Path) -> None:
    """Modes as git keeps them: a checkout's umask must not change the image."""
    for folder, _, names in os.walk(context / "checkout"):
        Path(folder).chmod(0o755)
        for name in names:
            file = Path(folder, name)
            file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def site_registry(values: Mapping[str, str]) -> str | None:
    """The mirror that ``values: {registry: …}`` of site.yaml names."""
    return values.get("registry")
