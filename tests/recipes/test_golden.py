"""Every shipped recipe and variant resolves, and what it resolves to is kept in a file that a reviewer reads in a diff.

After a wanted change: VERL_MUSA_UPDATE_GOLDEN=1 python -m pytest tests/recipes/test_golden.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_musa.recipe import Site, list_recipes, list_variants, load_recipe, portable, resolve
from verl_musa.run.directory import RunDirectory
from verl_musa.run.launch import expectation, job_command, job_config

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
RECIPES = sorted(folder.name for folder in (ROOT / "recipes").iterdir() if (folder / "recipe.yaml").is_file())
LAUNCHES = sorted(
    [
        *RECIPES,
        *(f"{name}@{variant}" for name in RECIPES for variant in list_variants(ROOT / "recipes" / name)),
    ]
)


SITE = Site(values={"gsm8k": "/site/gsm8k"})
"""What the site has to say for the recipes that ask it."""


def launch_of(name: str, run_dir: Path) -> dict[str, Any]:
    """The resolved launch with every folder of this machine named symbolically."""
    recipe = load_recipe(str(ROOT / "recipes" / name))
    resolved = resolve(recipe, run_dir=run_dir, site=SITE, without_site=True)
    command = [part.replace(str(run_dir), "<run.dir>") for part in job_command(recipe, RunDirectory(run_dir))]
    loggers = job_config(resolved, None, resuming=False)["trainer"]["logger"]
    assert "file" in loggers
    return {
        "extras": list(recipe.extras),
        "command": ["python" if part == sys.executable else part for part in command],
        "expected_of_each_worker": expectation(recipe),
        "runtime_env": resolved.runtime_env,
        "config": portable(resolved),
    }


def test_the_list_is_what_the_command_line_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("VERL_MUSA_RECIPES", raising=False)
    assert sorted(list_recipes()) == RECIPES
    assert RECIPES


def test_every_golden_file_belongs_to_a_recipe_or_variant() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.yaml")) == LAUNCHES


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_resolved_launch_is_the_golden_one(name: str, tmp_path: Path) -> None:
    launch = launch_of(name, tmp_path / "run")
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("VERL_MUSA_UPDATE_GOLDEN") == "1":
        path.write_text(yaml.safe_dump(launch, sort_keys=False, allow_unicode=True), encoding="utf-8")
    assert launch == yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LAUNCHES)
def test_no_machine_path_is_left(name: str) -> None:
    text = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    for folder in (Path.home(), ROOT):
        assert str(folder) not in text
