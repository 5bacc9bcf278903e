"""The rewards of the two big recipes on their own golden pairs, in English and Chinese, through verl's calling convention."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_musa.diagnose.golden import Golden, load_golden

ROOT = Path(__file__).parents[2] / "recipes"
RECIPES = ("qwen3-8b-dense", "qwen3-30b-a3b-moe")


def function_of(recipe: str) -> Callable[..., dict[str, float]]:
    spec = importlib.util.spec_from_file_location(
        f"reward_of_{recipe.replace('-', '_')}", ROOT / recipe / "reward.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., dict[str, float]] = module.compute_score
    return function


def calls(golden: Golden) -> list[tuple[str, Any, str, float]]:
    return [
        (case.prompt, case.ground_truth, response, expected)
        for case in golden.cases
        for expected, responses in ((1.0, case.right), (0.0, case.wrong))
        for response in responses
    ]


@pytest.mark.parametrize("recipe", RECIPES)
def test_golden_pairs(recipe: str) -> None:
    compute_score = function_of(recipe)
    found = calls(load_golden(ROOT / recipe / "golden.yaml"))
    assert sum(expected == 1 for *_, expected in found) >= 50
    assert sum(expected == 0 for *_, expected in found) >= 50
    bad = []
    for prompt, truth, response, expected in found:
        result = compute_score(
            data_source="math",
            solution_str=response,
            ground_truth=truth,
            extra_info={"index": 0, "num_turns": None, "rollout_reward_scores": {}},
        )
        assert set(result) == {"score", "acc", "parsed", "gave_up"}
        if (result["score"], result["gave_up"]) != (expected, 0.0):
            bad.append((prompt, response, expected, result))
    assert not bad, bad


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("truth", [None, "", "  ", 42, ["42"]])
def test_a_ground_truth_that_is_none_is_an_error_and_not_a_zero(recipe: str, truth: Any) -> None:
    with pytest.raises(ValueError, match="found ground_truth"):
        function_of(recipe)("math", "\\boxed{42}", truth)
