"""Compiles the C++ part once per (sources, torch, Python, compiler, flags) and caches it.

The cache is ``$XDG_CACHE_HOME or ~/.cache`` / ``verl-musa/musa_sim/<key>/``. Two processes that need the same build
at once wait for each other under a file lock; the build runs in a folder beside and is renamed into place, so a
library that is there is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

HEADER = "musa_sim.h"
LIBRARY = "_C.so"
LOCK_WAIT_S = 900.0  # a cold build takes 1-3 minutes on two cores; several may queue on a busy machine
COMPILE_LIMIT_S = 1200.0  # one source; far above what the slowest needs
DISTRIBUTED_DEFINES = ("-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", "-DUSE_RPC")
FLAGS = (
    "-std=c++20",
    "-O1",  # the kernels are PyTorch's own; -O2 only lengthens the build
    "-fPIC",
    "-fvisibility=hidden",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    *DISTRIBUTED_DEFINES,
)


@dataclass(frozen=True)
class Toolchain:
    """A compiler command and the first line of its ``--version``."""

    command: tuple[str, ...]
    version: str


def source_dir() -> Path:
    """Where the C++ sources lie: beside the package in a checkout, inside it once installed."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_csrc", package.parent / "csrc"):
        if (folder / HEADER).is_file():
            return folder
    raise ImportError(
        f"musa-sim is installed without its C++ sources: neither {package / '_csrc'} nor {package.parent / 'csrc'} "
        f"holds {HEADER}. Reinstall it: pip install --force-reinstall <checkout>/ci/musa_sim"
    )


def sources(folder: Path) -> list[Path]:
    """The files that make up the build, in a fixed order."""
    return sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])


def cache_root() -> Path:
    """The folder that holds every build of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "verl-musa" / "musa_sim"


def find_toolchain() -> Toolchain | None:
    """The compiler named by CXX, else g++; ``None`` if it is not there or does not answer."""
    command = tuple(shlex.split(os.environ.get("CXX") or "g++"))
    if not command or shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return Toolchain(command, done.stdout.splitlines()[0])


def base_key(folder: Path) -> str:
    """Hash of everything but the compiler: sources, torch, Python ABI, flags."""
    digest = hashlib.sha256()
    for part in (
        torch.__version__,
        str(torch.version.git_version),
        sysconfig.get_config_var("SOABI"),
        *FLAGS,
    ):
        digest.update(f"{part}\0".encode())
    for path in sources(folder):
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_key(folder: Path, toolchain: Toolchain) -> str:
    """The name of the build's folder: ``<base>-<compiler>``."""
    return f"{base_key(folder)}-{hashlib.sha256(toolchain.version.encode()).hexdigest()[:8]}"


def find_cached(folder: Path, toolchain: Toolchain | None) -> Path | None:
    """The cached library, or ``None``. Without a compiler, one built by any compiler from the same base will do."""
    if toolchain is not None:
        library = cache_root() / cache_key(folder, toolchain) / LIBRARY
        return library if library.is_file() else find_shipped(folder)
    found = next(iter(sorted(cache_root().glob(f"{base_key(folder)}-*/{LIBRARY}"))), None)
    return found or find_shipped(folder)


def shipped_root() -> Path:
    """Where an image carries its build: inside the installed package, so that it needs neither a compiler nor a home."""
    return Path(__file__).resolve().parent / "_prebuilt"


def find_shipped(folder: Path) -> Path | None:
    """The library that was built into this installation from exactly these sources, or ``None``."""
    library = shipped_root() / base_key(folder) / LIBRARY
    return library if library.is_file() else None


def build_into_package() -> Path:
    """Build the library and keep it inside the installed package."""
    folder = source_dir()
    built = ensure_built()
    target = shipped_root() / base_key(folder)
    if not built.is_relative_to(target):
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built, target / LIBRARY)
    return target / LIBRARY


def ensure_built(*, quiet: bool = False) -> Path:
    """Path of the compiled library, building it if needed.

    Raises:
        ImportError: no compiler, no Python headers, a compile error, or another build holds the lock for too long;
            the message names the compiler, the log file and what to do.
    """
    folder = source_dir()
    toolchain = find_toolchain()
    library = find_cached(folder, toolchain)
    if library is not None:
        return library
    toolchain = _require_toolchain(toolchain)
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    key = cache_key(folder, toolchain)
    with _locked(root / f"{key}.lock"):
        library = find_cached(folder, toolchain)  # whoever held the lock may have built it
        return library if library is not None else _build(folder, toolchain, root, key, quiet=quiet)


def _require_toolchain(toolchain: Toolchain | None) -> Toolchain:
    wanted = os.environ.get("CXX") or "g++"
    if toolchain is None:
        raise ImportError(
            f"the simulated musa device must be compiled once, and the C++ compiler '{wanted}' was not found. "
            f"Install it (Debian: apt-get install g++), or set CXX; cached builds are looked for in {cache_root()}"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise ImportError(
            f"the simulated musa device must be compiled once (compiler {toolchain.version}), and Python's headers "
            f"are missing: {header}. Install them (Debian: apt-get install python3-dev)"
        )
    return toolchain


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_WAIT_S
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ImportError(
                        f"another process has been building the simulated musa device for {LOCK_WAIT_S:.0f} s (lock "
                        f"{path}). See whether a compiler still runs; if none does, import again"
                    ) from None
                time.sleep(0.2)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _build(folder: Path, toolchain: Toolchain, root: Path, key: str, *, quiet: bool) -> Path:
    work = root / f".{key}.{os.getpid()}.tmp"
    log = root / f"{key}.log"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    started = time.monotonic()
    try:
        _say(
            f"compiling the simulated musa device for torch {torch.__version__} with {toolchain.version}",
            quiet,
        )
        for path in sources(folder):
            shutil.copy(path, work / path.name)
        log.write_text("", encoding="utf-8")
        _compile_all(work, toolchain, log, quiet=quiet)
        for path in work.iterdir():
            if path.name != LIBRARY:
                path.unlink()
        work.replace(root / key)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _say(f"done in {time.monotonic() - started:.0f} s, cached in {root / key}", quiet)
    return root / key / LIBRARY


def _compile_all(work: Path, toolchain: Toolchain, log: Path, *, quiet: bool) -> None:
    torch_dir = Path(torch.__file__).resolve().parent
    includes = [
        f"-I{work}",
        f"-isystem{torch_dir / 'include'}",
        f"-isystem{torch_dir / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-isystem{sysconfig.get_path('include')}",
    ]
    # The folder's name holds a process id, and error messages the names of headers: two builds shall give equal bytes.
    compile_one = [*toolchain.command, *FLAGS, f"-ffile-prefix-map={work}=.", *includes]
    units = sorted(work.glob("*.cpp"))
    total = len(units) + 2
    _say(f"[1/{total}] {HEADER} (precompiled)", quiet)
    _run([*compile_one, "-x", "c++-header", HEADER, "-o", f"{HEADER}.gch"], work, toolchain, log)
    with ThreadPoolExecutor(max_workers=_jobs()) as pool:
        jobs = [
            pool.submit(
                _run,
                [*compile_one, "-include", HEADER, "-c", unit.name, "-o", f"{unit.stem}.o"],
                work,
                toolchain,
                log,
            )
            for unit in units
        ]
        for count, (unit, job) in enumerate(zip(units, jobs, strict=True), start=2):
            job.result()
            _say(f"[{count}/{total}] {unit.name}", quiet)
    objects = [f"{unit.stem}.o" for unit in units]
    libraries = [f"-L{torch_dir / 'lib'}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]
    _run([*toolchain.command, "-shared", "-o", LIBRARY, *objects, *libraries], work, toolchain, log)
    _say(f"[{total}/{total}] linked", quiet)


def _jobs() -> int:
    given = os.environ.get("MAX_JOBS", "")
    return int(given) if given.isdigit() and int(given) > 0 else min(4, len(os.sched_getaffinity(0)))


def _run(command: Sequence[str], work: Path, toolchain: Toolchain, log: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False
        )
        output, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        output, code = f"stopped after {COMPILE_LIMIT_S:.0f} s", -1
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n{output}")
    if code != 0:
        first = next((line for line in output.splitlines() if "error" in line), output[-300:])
        raise ImportError(
            f"compiling the simulated musa device failed (compiler {toolchain.version}, exit {code}): {first.strip()}\n"
            f"The whole output is in {log}. Versions tried: torch 2.13.0 with GCC 12"
        )


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(f"musa_sim: {text}", file=sys.stderr, flush=True)
