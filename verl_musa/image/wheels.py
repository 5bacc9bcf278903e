"""Requirements locked by hash, and the files behind them: fetched once, before the build, with the user's own pip settings."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from verl_musa.errors import ImageError
from verl_musa.fileio import write_atomic
from verl_musa.image.engine import Progress, run_logged
from verl_musa.image.pins import COMMON, LOCKS, Pins

PLATFORM = "x86_64-manylinux_2_36"
FETCH_LIMIT_S = 3600.0
LOCK_LIMIT_S = 900.0
TOOLS = "tools"
VENDOR = "vendor"
BUILDERS = ("setuptools", "wheel", "packaging")
DOWNLOADS = 3
"""How many pips fetch at a time: each waits for the index most of its time."""

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Locked:
    """One line of a lock.

    Attributes:
        name: canonical name.
        version: exact version.
        hashes: SHA-256 of each file that may be installed for it.
    """

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The line as pip reads it."""
        parts = [f"{self.name}=={self.version}", *(f"--hash=sha256:{value}" for value in self.hashes)]
        return " \\\n    ".join(parts)


def lock_file(pins: Pins, layer: str) -> Path:
    """Where the lock of a layer lies."""
    folder = pins.folder.parent / COMMON if layer == TOOLS else pins.folder
    return folder / LOCKS / f"{layer}.txt"


def layers(pins: Pins) -> list[str]:
    """Every layer of an image that has a lock, in the order in which they are installed."""
    vendor = [VENDOR] if pins.layers.vendor_checkout else []
    return [TOOLS, *vendor, *pins.layers.main, *pins.layers.aside]


def read_lock(file: Path) -> list[Locked]:
    """Read a lock.

    Raises:
        ImageError: it is missing, or a line of it is not pinned by version and hash.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ImageError("no lock", where=str(file), found=str(error), expected="exact versions with hashes", fix="nox -s lock") from error  # fmt: skip
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        stated, _, hashes = line.partition("--hash")
        if not stated.strip() or stated.lstrip().startswith("#"):
            continue
        name, separator, version = stated.strip().partition("==")
        values = _HASH.findall(f"--hash{hashes}")
        if not separator or not values:
            raise ImageError(
                "a line of the lock is not pinned",
                where=str(file),
                found=line.strip()[:120],
                expected="NAME==VERSION --hash=sha256:…",
                fix="nox -s lock",
            )
        found.append(Locked(canonicalize_name(name), version, tuple(values)))
    return found


def read_requirements(files: Iterable[Path]) -> dict[str, str]:
    """Canonical name -> exact version of every line of requirements files.

    Raises:
        ImageError: a line that is not exact, or a package that two lines pin differently.
    """
    found: dict[str, str] = {}
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            where = f"{file}:{number}"
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                raise ImageError("not a requirement", where=where, found=text) from error
            version = str(requirement.specifier).removeprefix("==")
            if not str(requirement.specifier).startswith("==") or "," in version:
                raise ImageError(
                    "not pinned to one version", where=where, found=text, expected="NAME==VERSION"
                )
            name = canonicalize_name(requirement.name)
            if found.setdefault(name, version) != version:
                raise ImageError("pinned twice, differently", where=where, found=text, expected=f"{name}=={found[name]}")  # fmt: skip
    return found


def wanted(pins: Pins) -> dict[str, dict[str, str]]:
    """Layer -> what it pins. A package of the vendor's is in the vendor's layer alone."""
    vendor = {canonicalize_name(name) for name in pins.layers.vendor}
    found: dict[str, dict[str, str]] = {
        TOOLS: read_requirements([pins.folder.parent / COMMON / f"requirements-{TOOLS}.txt"])
    }
    pinned: dict[str, str] = {}
    for layer in (*pins.layers.main, *pins.layers.aside):
        read = read_requirements([pins.requirements / f"requirements-{layer}.txt"])
        pinned.update({name: version for name, version in read.items() if name in vendor})
        found[layer] = {name: version for name, version in read.items() if name not in vendor}
    if pins.layers.vendor_checkout:
        found[VENDOR] = pinned
    return {layer: found[layer] for layer in layers(pins)}


def check_locks(pins: Pins) -> dict[str, list[Locked]]:
    """Layer -> its lock, once each says what the requirements and the pins say.

    Raises:
        ImageError: a lock is missing, or out of step; the message names the package.
    """
    found = {}
    for layer, versions in wanted(pins).items():
        file = lock_file(pins, layer)
        lock = read_lock(file)
        locked = {entry.name: entry.version for entry in lock}
        differing = sorted(
            name
            for name in versions.keys() | locked.keys()
            if not _same(versions.get(name), locked.get(name))
        )
        if differing:
            name = differing[0]
            raise ImageError(
                f"the lock of layer {layer} is out of step with its requirements"
                + (f" ({len(differing)} packages)" if len(differing) > 1 else ""),
                where=str(file),
                found=f"{name} {locked.get(name, 'missing')}",
                expected=f"{name} {versions.get(name, 'not there')}",
                fix="nox -s lock",
            )
        found[layer] = lock
    _check_pins(pins, wanted(pins))
    return found


def _same(wanted_version: str | None, locked: str | None) -> bool:
    """Equal but for a local label: an index of CPU builds calls torch 2.13.0 ``2.13.0+cpu``."""
    return (
        wanted_version is not None
        and locked is not None
        and locked.partition("+")[0] == wanted_version.partition("+")[0]
    )


def _check_pins(pins: Pins, versions: dict[str, dict[str, str]]) -> None:
    """``pins.toml`` and the requirements name the same versions."""
    stated = {name: version for layer in versions.values() for name, version in layer.items()}
    for section, packages in (("packages", pins.packages), ("beside", pins.beside)):
        for name, package in packages.items():
            found = stated.get(canonicalize_name(name))
            if package.source == "pypi" and found != package.version:
                raise ImageError(
                    "the pins and the requirements name different versions",
                    where=pins.where(section, name),
                    found=f"{name} {package.version}",
                    expected=f"{name} {found or 'in a requirements file'}",
                    fix="correct one of them, then nox -s lock",
                )


def make_locks(pins: Pins, wheels: Path, progress: Progress) -> list[Path]:
    """Write the locks of an image; return their files.

    Hashes of what the package index has come from uv, for every file of a version; for what only the user's pip settings find
    (the CPU build of torch) the file is fetched and hashed.

    Raises:
        ImageError: a version cannot be had.
    """
    written = []
    for layer, versions in wanted(pins).items():
        progress(f"{pins.image}: locking {layer}, {len(versions)} packages")
        local = {name: version for name, version in versions.items() if name == "torch"}
        entries = _hashes_of_index({n: v for n, v in versions.items() if n not in local}, pins.python)
        entries += [_hashed(name, version, wheels) for name, version in local.items()]
        lines = [entry.text for entry in sorted(entries, key=lambda entry: entry.name)]
        file = lock_file(pins, layer)
        file.parent.mkdir(exist_ok=True)
        head = f"# Written by `nox -s lock` from the requirements of layer {layer}: do not edit it."
        write_atomic(file, "\n".join([head, *lines, ""]))
        written.append(file)
    return written


def _hashes_of_index(versions: dict[str, str], python: str) -> list[Locked]:
    if not versions:
        return []
    with tempfile.TemporaryDirectory(prefix="verl-musa-lock-") as folder:
        given, target = Path(folder, "in.txt"), Path(folder, "out.txt")
        given.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-annotate",
                   "--no-header", "--python-version", python, "--python-platform", PLATFORM, str(given), "-o", str(target)]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LOCK_LIMIT_S, env=_uv_environment()
        )
        if done.returncode != 0:
            raise ImageError("uv cannot lock the requirements", found=done.stderr.strip()[-800:], fix="check the package index that pip is set to")  # fmt: skip
        return read_lock(target)


def _uv_environment() -> dict[str, str]:
    """Pip's certificates and index for uv, which reads none of pip's settings."""
    given = {"SSL_CERT_FILE": os.environ.get("PIP_CERT"), "UV_DEFAULT_INDEX": os.environ.get("PIP_INDEX_URL")}
    return {**{name: value for name, value in given.items() if value}, **os.environ}


def _hashed(name: str, version: str, wheels: Path) -> Locked:
    wheels.mkdir(parents=True, exist_ok=True)
    file = next(iter(_files(wheels, name, version)), None)
    if file is None:
        command = [*_pip("download"), "--dest", str(wheels), f"{name}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_LIMIT_S)
        file = next(iter(_files(wheels, name, version)), None)
        if done.returncode != 0 or file is None:
            raise ImageError(
                "cannot be fetched", where=f"{name}=={version}", found=done.stderr.strip()[-500:]
            )
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Locked(canonicalize_name(name), str(_named(file)[1]), (digest,))


def _pip(verb: str) -> list[str]:
    return [sys.executable, "-m", "pip", verb, "--no-deps", "--disable-pip-version-check", "--no-input"]


def _named(file: Path) -> tuple[str, str]:
    if file.suffix == ".whl":
        name, version, *_ = parse_wheel_filename(file.name)
    else:
        name, version = parse_sdist_filename(file.name)
    return canonicalize_name(name), str(version)


def _files(folder: Path, name: str, version: str) -> list[Path]:
    files = [file for file in sorted(folder.glob("*")) if file.name.endswith((".whl", ".tar.gz", ".zip"))]
    return [
        file
        for file in files
        if _named(file)[0] == canonicalize_name(name)
        and _named(file)[1].partition("+")[0] == version.partition("+")[0]
    ]


def fetch(
    pins: Pins, locks: dict[str, list[Locked]], wheels: Path, log: Path, progress: Progress
) -> dict[str, list[Path]]:
    """Have every locked file in ``wheels``; return them by layer. What is there with the right hash is not fetched again.

    Raises:
        ImageError: a file cannot be had, or has another hash.
    """
    wheels.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Path]] = {}
    for layer, lock in locks.items():
        known = _by_hash(wheels, lock)
        missing = [entry for entry in lock if entry.name not in known]
        if missing:
            progress(f"fetching {len(missing)} packages of layer {layer}")
            _check_python(pins.python)
            with _builders(found.get(TOOLS, ())) as builders, ThreadPoolExecutor(DOWNLOADS) as pool:
                jobs = [
                    pool.submit(
                        _download, part, wheels, log.with_suffix(f".{layer}{number}.log"), layer, builders
                    )
                    for number, part in enumerate(missing[start::DOWNLOADS] for start in range(DOWNLOADS))
                    if part
                ]
                for job in jobs:
                    job.result()
            known = _by_hash(wheels, lock)
        lacking = [f"{entry.name}=={entry.version}" for entry in lock if entry.name not in known]
        if lacking:
            raise ImageError(
                "files of the lock are missing",
                where=str(wheels),
                found=f"no file with a locked hash for {', '.join(lacking[:5])}",
                expected="one for each line of the lock",
                fix="look at the log; where there is no network, copy the folder from a machine that has it",
            )
        found[layer] = [known[entry.name] for entry in lock]
    return found


def _by_hash(wheels: Path, lock: Sequence[Locked]) -> dict[str, Path]:
    """Name -> the file in ``wheels`` that has one of its locked hashes."""
    candidates: dict[str, list[Path]] = {}
    for file in sorted(wheels.glob("*")):
        if file.name.endswith((".whl", ".tar.gz", ".zip")):
            candidates.setdefault(_named(file)[0], []).append(file)
    found = {}
    for entry in lock:
        for file in candidates.get(entry.name, ()):
            with file.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() in entry.hashes:
                    found[entry.name] = file
                    break
    return found


def _check_python(wanted_version: str) -> None:
    running = ".".join(map(str, sys.version_info[:2]))
    if running != wanted_version:
        raise ImageError(
            "the packages must be fetched with the image's Python version",
            found=f"Python {running}",
            expected=f"Python {wanted_version}",
            fix=f"python{wanted_version} -m nox -s build_image",
        )


@contextmanager
def _builders(tools: Sequence[Path]) -> Iterator[Path]:
    """The locked build systems, for pip to ask them a source package's name: it would fetch one without a hash."""
    with tempfile.TemporaryDirectory(prefix="verl-musa-builders-") as folder:
        for file in tools:
            if _named(file)[0] in BUILDERS:
                with zipfile.ZipFile(file) as wheel:
                    wheel.extractall(folder)
        yield Path(folder)


def _download(missing: Sequence[Locked], wheels: Path, log: Path, layer: str, builders: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="verl-musa-fetch-") as file:
        file.write("".join(f"{entry.text}\n" for entry in missing))
        file.flush()
        command = [*_pip("download"), "--quiet", "--require-hashes", "--no-build-isolation", "--dest", str(wheels), "-r", file.name]  # fmt: skip
        paths = os.pathsep.join(filter(None, (str(builders), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": paths}
        run_logged(command, log, what=f"fetch {layer}", limit=FETCH_LIMIT_S, env=env)
