"""Files that a recipe's seeded script makes once, cached by everything that decides what it makes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from verl_musa.errors import DataError
from verl_musa.recipe.schema import Recipe

LOCK_WAIT_SECONDS = 1800.0
"""Longest wait for another process that makes the same assets; above the default limit of a script."""

_VERSIONED = ("torch", "transformers", "tokenizers", "numpy", "pyarrow")
_KEPT_LINES = 20
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 5.0


def assets_dir(recipe: Recipe, cache: Path | None = None) -> Path | None:
    """Where the recipe's assets are or will be; None where it makes none. Touches no file but the script.

    ``<cache>/verl-musa/assets/<recipe>/<hash>``, ``cache`` being ``${XDG_CACHE_HOME:-~/.cache}`` where it is not given, with a hash over the script's content, what such
    scripts share, the seed, the interpreter and the versions of the libraries that decide the files' content.
    """
    if recipe.assets is None or recipe.assets_script is None:
        return None
    facts = {
        "script": hashlib.sha256(recipe.assets_script.read_bytes()).hexdigest(),
        "library": _library(),
        "seed": recipe.assets.seed,
        "python": f"{sys.implementation.name} {platform.python_version()}",
        "versions": {name: _version(name) for name in _VERSIONED},
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder).expanduser().absolute() / "verl-musa" / "assets" / recipe.name / key


def _library() -> str:
    """Hash of what such scripts share, ``verl_musa.data.toy``."""
    files = sorted((Path(__file__).parents[1] / "data" / "toy").glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def ensure_assets(recipe: Recipe, *, progress: Callable[[str], None], cache: Path | None = None) -> Path:
    """Make the recipe's assets unless they are there, and return their folder.

    Safe to call from several processes at once: one makes them, the others wait.

    Args:
        recipe: a recipe with an ``assets`` section.
        progress: called with each line that the script prints.
        cache: as for :func:`assets_dir`.

    Raises:
        DataError: the recipe makes no assets, the script failed, ran too long or made nothing, or another process
            held the lock for too long.
    """
    final = assets_dir(recipe, cache)
    script, assets = recipe.assets_script, recipe.assets
    if final is None or script is None or assets is None:
        raise DataError(
            f"recipe {recipe.name} makes no assets",
            where=recipe.document.where(),
            expected="an 'assets' section",
            fix="add one, or name existing files",
        )
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with _locked(final.parent / f".{final.name}.lock", progress):
        if final.is_dir():
            return final
        progress(f"making the assets of {recipe.name} with {script.name} (once; cached in {final})")
        with tempfile.TemporaryDirectory(
            dir=final.parent, prefix=f".{final.name}.", ignore_cleanup_errors=True
        ) as scratch:
            made = Path(scratch) / "assets"
            # -P keeps the recipe folder off the import path: what the script makes depends on the script alone.
            command = [sys.executable, "-P", str(script), "--out", str(made), "--seed", str(assets.seed)]
            _run_script(command, script, timeout=float(assets.timeout_seconds), progress=progress)
            if not made.is_dir() or not any(made.iterdir()):
                raise DataError(
                    "the assets script ended well but made nothing",
                    where=str(script),
                    found="no files",
                    expected="files under the folder given as --out",
                    fix="make that folder and write the files into it",
                )
            made.rename(final)
    return final


def discard_assets(recipe: Recipe) -> None:
    """Remove the cached assets of ``recipe``, so that the next call makes them anew."""
    final = assets_dir(recipe)
    if final is not None and final.is_dir():
        shutil.rmtree(final)


@contextlib.contextmanager
def _locked(path: Path, progress: Callable[[str], None], wait: float | None = None) -> Iterator[None]:
    """Hold an exclusive lock on ``path``. The kernel drops it when its holder dies, so it never goes stale."""
    limit = LOCK_WAIT_SECONDS if wait is None else wait
    deadline = time.monotonic() + limit
    with path.open("w") as stream:
        told = False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise DataError(
                        "another process is still making these assets",
                        where=str(path),
                        found=f"the lock was held for {limit:.0f} s",
                        expected="the other process to finish",
                        fix="find it with `fuser` on that file; end it if it hangs, then try again",
                    ) from error
                if not told:
                    progress("waiting for another process that makes the same assets")
                    told = True
                time.sleep(_POLL_SECONDS)
        yield


def _run_script(command: list[str], script: Path, *, timeout: float, progress: Callable[[str], None]) -> None:
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    # A fixed hash seed: a script that iterates over a set must not make other files on each call.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    reader = threading.Thread(target=_forward, args=(process, last, progress), daemon=True)
    reader.start()
    try:
        code = process.wait(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise _script_error(f"the assets script ran longer than {timeout:.0f} s", script, last) from error
    finally:
        _end_group(process)
        reader.join(timeout=_GRACE_SECONDS)
    if code != 0:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise _script_error(f"the assets script failed ({how})", script, last)


def _forward(process: subprocess.Popen[str], last: deque[str], progress: Callable[[str], None]) -> None:
    if process.stdout is not None:
        with process.stdout as stream:
            for line in stream:
                last.append(line.rstrip())
                progress(line.rstrip())


def _end_group(process: subprocess.Popen[str]) -> None:
    """End what is left of the script's own session, children included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=_GRACE_SECONDS)


def _script_error(message: str, script: Path, last: deque[str]) -> DataError:
    tail = "\n".join(f"    | {line}" for line in last)
    return DataError(
        message,
        where=str(script),
        found=f"its last lines were\n{tail}" if last else "it printed nothing",
        expected="exit code 0 within assets.timeout_seconds",
        fix=f"run it by hand: {sys.executable} -P {script} --out DIR --seed N",
    )
