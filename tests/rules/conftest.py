"""Copies of the shipped recipes with mistakes planted in them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.data.conftest import _quick_compose
from verl_musa.recipe import Resolved, Site, load_recipe, resolve

RECIPES = Path(__file__).parents[2] / "recipes"

DENSE, MOE = "qwen3-8b-dense", "qwen3-30b-a3b-moe"


@dataclass(frozen=True)
class Planted:
    """A recipe with one mistake, and where that is."""

    name: str
    folder: Path
    where: str

    def resolve(self, *sets: str) -> Resolved:
        """Resolve it on a machine without site.yaml."""
        recipe = load_recipe(f"{self.folder}{self.name.removeprefix(self.folder.name)}")
        return resolve(recipe, run_dir=self.folder.parent / "run", site=Site(), sets=sets, without_site=True)


def compose_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's defaults with the overrides written into them: Hydra itself takes seconds, and has its own tests."""
    monkeypatch.setattr("verl_musa.recipe.resolution.compose", _quick_compose)


Plant = Callable[..., Planted]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Copy a shipped recipe and replace ``old`` by ``new`` in one of its files; ``old`` empty: append ``new``."""

    def make(name: str, file: str = "", old: str = "", new: str = "") -> Planted:
        base = name.partition("@")[0]
        folder = tmp_path / base
        if not folder.exists():
            shutil.copytree(RECIPES / base, folder)
        path = folder / file
        if not file:
            return Planted(name, folder, "")
        text = path.read_text(encoding="utf-8")
        assert not old or text.count(old) == 1, f"{text.count(old)} times in {file}: {old!r}"
        changed = text.replace(old, new) if old else f"{text.rstrip()}\n{new}\n"
        path.write_text(changed, encoding="utf-8")
        marked = new.strip().splitlines()[-1] if new.strip() else ""
        line = next((n for n, one in enumerate(changed.splitlines(), start=1) if marked and marked in one), 0)
        return Planted(name, folder, f"{path}:{line}" if line else str(path))

    return make
