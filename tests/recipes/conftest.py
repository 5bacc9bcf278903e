"""The scripts of a toy recipe, loaded by path and run for real with hardly any training."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
SEED = 17
LIMIT_S = 400


def load_script(recipe: str, name: str) -> ModuleType:
    """Import one of the scripts of a recipe, or of ``RECIPE/variants/VARIANT``, by path, as verl does."""
    spec = importlib.util.spec_from_file_location(
        re.sub(r"\W", "_", f"{recipe}_{name}"), RECIPES / recipe / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run_script(recipe: str, out: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the recipe's ``make_assets.py``."""
    script = [sys.executable, "-P", str(RECIPES / recipe / "make_assets.py"), "--out", str(out)]
    return subprocess.Popen(
        [*script, "--seed", str(SEED), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _make_twice(recipe: str, folder: Path) -> None:
    jobs = [run_script(recipe, folder / name, "--pretrain-steps", "2") for name in ("first", "second")]
    try:
        outputs = [job.communicate(timeout=LIMIT_S)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    log = "\n".join(f"exit {job.returncode}\n{text}" for job, text in zip(jobs, outputs, strict=True))
    (folder / "log.tmp").write_text(log)
    (folder / "log.tmp").rename(folder / "log")


def made_twice(recipe: str, factory: pytest.TempPathFactory) -> Path:
    """A folder with ``first`` and ``second``, what the script made of the same seed, and ``log``.

    Made once for all xdist workers: the script's imports are its main cost here.
    """
    pytest.importorskip("transformers", reason="the model is made with transformers")
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / recipe
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + LIMIT_S + 100
        while not (folder / "log").exists():
            assert time.monotonic() < deadline, f"{folder}: the worker that makes the assets didn't finish"
            time.sleep(0.2)
    else:
        _make_twice(recipe, folder)
    log = (folder / "log").read_text()
    assert log.count("exit 0\n") == 2, log
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
