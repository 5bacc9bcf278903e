from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.errors import DataError
from verl_musa.recipe import Recipe, assets, assets_dir, ensure_assets, load_recipe
from verl_musa.recipe.assets import discard_assets

MakeRecipe = Callable[..., Path]

SCRIPT = """\
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--seed", type=int)
args = parser.parse_args()
args.out.mkdir()
print("making", flush=True)
(args.out / "seed").write_text(str(args.seed))
"""


@pytest.fixture
def make(make_recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def do(script: str = SCRIPT, *, seed: int = 5, timeout: int = 30) -> Recipe:
        folder = make_recipe(extra=f"assets: {{script: make.py, seed: {seed}, timeout_seconds: {timeout}}}\n")
        (folder / "make.py").write_text(script, encoding="utf-8")
        return load_recipe(str(folder))

    return do


def test_made_once(make: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make()
    lines: list[str] = []
    folder = ensure_assets(recipe, progress=lines.append)
    assert folder.is_relative_to(tmp_path / "cache" / "verl-musa" / "assets" / "tiny")
    assert (folder / "seed").read_text(encoding="utf-8") == "5"
    assert lines[-1] == "making"
    again: list[str] = []
    assert ensure_assets(recipe, progress=again.append) == folder
    assert again == []
    assert sorted(f.name for f in folder.parent.iterdir()) == sorted([folder.name, f".{folder.name}.lock"])
    discard_assets(recipe)
    assert not folder.exists()


def test_key_follows_seed_and_script(make: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch) -> None:
    first = assets_dir(make())
    assert assets_dir(make()) == first
    assert assets_dir(make(seed=6)) != first
    assert assets_dir(make(SCRIPT + "#")) != first
    recipe = make()
    monkeypatch.setattr(assets, "_version", lambda _: "9.9.9")
    assert assets_dir(recipe) != first


def test_failure_shows_the_last_lines_and_leaves_nothing(make: Callable[..., Recipe]) -> None:
    recipe = make("import sys\nprint('step 1')\nsys.exit('no torch here')\n")
    with pytest.raises(DataError, match=r"failed \(exit code 1\)") as caught:
        ensure_assets(recipe, progress=lambda _: None)
    assert "| step 1" in str(caught.value.found)
    assert "| no torch here" in str(caught.value.found)
    folder = assets_dir(recipe)
    assert folder is not None
    assert [f.name for f in folder.parent.iterdir()] == [f".{folder.name}.lock"]


def test_killed_by_signal(make: Callable[..., Recipe]) -> None:
    recipe = make("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(DataError, match=r"signal SIGKILL"):
        ensure_assets(recipe, progress=lambda _: None)


def test_timeout_ends_children_too(make: Callable[..., Recipe], tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(mark)!r}).touch()"
    recipe = make(
        f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(60)\n",
        timeout=1,
    )
    start = time.monotonic()
    with pytest.raises(DataError, match="longer than 1 s"):
        ensure_assets(recipe, progress=lambda _: None)
    assert time.monotonic() - start < 20
    time.sleep(max(0.0, 3.5 - (time.monotonic() - start)))
    assert not mark.exists()


@pytest.mark.parametrize("script", ["", "import sys, pathlib\npathlib.Path(sys.argv[2]).mkdir()\n"])
def test_nothing_made(script: str, make: Callable[..., Recipe]) -> None:
    with pytest.raises(DataError, match="made nothing"):
        ensure_assets(make(script), progress=lambda _: None)


def test_script_cannot_import_its_siblings(make: Callable[..., Recipe]) -> None:
    with pytest.raises(DataError, match="failed") as caught:
        ensure_assets(make("import reward\n"), progress=lambda _: None)
    assert "No module named 'reward'" in str(caught.value.found)


def test_a_recipe_without_assets(make_recipe: MakeRecipe) -> None:
    recipe = load_recipe(str(make_recipe()))
    assert assets_dir(recipe) is None
    with pytest.raises(DataError, match="makes no assets"):
        ensure_assets(recipe, progress=lambda _: None)


def test_lock_wait_is_bounded(make: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "LOCK_WAIT_SECONDS", 0.3)
    recipe = make()
    folder = assets_dir(recipe)
    assert folder is not None
    folder.parent.mkdir(parents=True)
    lines: list[str] = []
    with (folder.parent / f".{folder.name}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="still making"):
            ensure_assets(recipe, progress=lines.append)
    assert lines == ["waiting for another process that makes the same assets"]


def test_two_at_once_make_them_once(make: Callable[..., Recipe], tmp_path: Path) -> None:
    log = tmp_path / "log"
    recipe = make(SCRIPT + f"import time\ntime.sleep(0.5)\nopen({str(log)!r}, 'a').write('x')\n")
    threads = [
        threading.Thread(target=ensure_assets, args=(recipe,), kwargs={"progress": lambda _: None})
        for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert log.read_text(encoding="utf-8") == "x"
