"""The rewards of the two big recipes on their own golden pairs, in English and Chinese, through verl's calling convention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.recipes.conftest import RECIPES, load_script
from verl_musa.diagnose.golden import Golden, load_golden

BIG = ("qwen3-8b-dense", "qwen3-30b-a3b-moe")


def function_of(recipe: str) -> Callable[..., dict[str, float]]:
    function: Callable[..., dict[str, float]] = load_script(recipe, "reward").compute_score
    return function


def calls(golden: Golden) -> list[tuple[str, Any, str, float]]:
    return [
        (case.prompt, case.ground_truth, response, expected)
        for case in golden.cases
        for expected, responses in ((1.0, case.right), (0.0, case.wrong))
        for response in responses
    ]


@pytest.mark.parametrize("recipe", BIG)
def test_golden_pairs(recipe: str) -> None:
    compute_score = function_of(recipe)
    found = calls(load_golden(RECIPES / recipe / "golden.yaml"))
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


@pytest.mark.parametrize("recipe", BIG)
@pytest.mark.parametrize("truth", [None, "", "  ", 42, ["42"]])
def test_a_ground_truth_that_is_none_is_an_error_and_not_a_zero(recipe: str, truth: Any) -> None:
    with pytest.raises(ValueError, match="found ground_truth"):
        function_of(recipe)("math", "\\boxed{42}", truth)
