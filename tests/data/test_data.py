from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.checks import Status, exit_code
from verl_musa.data import CHECKS, check_recipe, require
from verl_musa.data.subject import Subject
from verl_musa.errors import DataError

Look = Callable[..., Subject]


def test_a_good_recipe_passes_every_check(look: Look) -> None:
    results = check_recipe(look().resolved)
    assert [r.check for r in results] == [c.name for c in CHECKS]
    assert len({c.name for c in CHECKS}) == len(CHECKS)
    assert [r for r in results if r.status is not Status.OK] == []
    assert exit_code(results) == 0
    require(results)


def test_require_stops_at_the_first_failure(folder: Path, look: Look) -> None:
    (folder / "val.parquet").unlink()
    (folder / "reward.py").write_text(
        "def compute_score(**kwargs):\n    raise ValueError('no')\n", encoding="utf-8"
    )
    results = check_recipe(look().resolved)
    with pytest.raises(DataError, match=r"check data\.val\.files failed") as caught:
        require(results)
    assert caught.value.where == f"{folder}/recipe.yaml:8"
    assert "also failed: reward.scores" in str(caught.value.fix)
    assert exit_code(results) == 2
