from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from verl_musa.checks import Result, Status
from verl_musa.diagnose import calls_for_job, golden_results
from verl_musa.diagnose.golden import golden_file
from verl_musa.recipe import Site, load_recipe, resolve

GOLDEN: dict[str, Any] = {
    "schema": 1,
    "scores": {"right": [1, 1], "wrong": [0, 0]},
    "cases": [
        {"prompt": "2 + 2", "ground_truth": "4", "right": ["4"], "wrong": ["5", ""]},
        {"prompt": "1 + 2", "ground_truth": "3", "right": ["3"], "wrong": ["4"]},
    ],
}
ROWS = [("2 + 2", "4"), ("1 + 2", "3"), ("5 + 5", "10")]
ROOT = Path(__file__).parents[2]


def rows(truths: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": prompt}],
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"index": place},
        }
        for place, (prompt, truth) in enumerate(truths)
    ]


def check(
    folder: Path, *, golden: Any = GOLDEN, data: list[tuple[str, str]] = ROWS, sets: tuple[str, ...] = ()
) -> Result:
    if golden is not None:
        text = golden if isinstance(golden, str) else yaml.safe_dump(golden)
        (folder / "golden.yaml").write_text(text, encoding="utf-8")
    for split in ("train", "val"):
        pq.write_table(
            pa.Table.from_pylist(rows(data if split == "train" else ROWS[2:])), folder / f"{split}.parquet"
        )
    recipe = load_recipe(str(folder))
    resolved = resolve(recipe, run_dir=folder / "run", site=Site(), sets=sets)
    (result,) = golden_results(resolved)
    assert result.check == "gate.reward"
    return result


def test_a_variant_may_bring_pairs_of_its_own(make_recipe: Any) -> None:
    folder = make_recipe()
    (folder / "golden.yaml").write_text(yaml.safe_dump(GOLDEN), encoding="utf-8")
    for name in ("own", "plain"):
        (folder / "variants" / name).mkdir(parents=True)
        (folder / "variants" / f"{name}.yaml").write_text("summary: x\n", encoding="utf-8")
    own = folder / "variants" / "own" / "golden.yaml"
    own.write_text(yaml.safe_dump(GOLDEN), encoding="utf-8")
    found = {}
    for named in ("", "@own", "@plain", "@own+plain"):
        recipe = load_recipe(f"{folder}{named}")
        found[named] = golden_file(resolve(recipe, run_dir=folder / "run", site=Site()))
    assert found == {
        "": folder / "golden.yaml",
        "@own": own,
        "@plain": folder / "golden.yaml",
        "@own+plain": own,
    }


def test_right_and_wrong_responses_score_as_they_should(make_recipe: Any) -> None:
    result = check(make_recipe())
    assert result.status is Status.OK
    assert result.evidence.startswith("5 responses to 2 prompts score as they should; 2 of the prompts")


def test_swapped_ground_truth_of_the_data_fails(make_recipe: Any) -> None:
    result = check(make_recipe(), data=[("2 + 2", "3"), ("1 + 2", "4")])
    assert result.status is Status.FAIL
    assert "the data says '3' for the prompt '2 + 2', the golden pair '4'" in result.evidence
    assert result.where.endswith("golden.yaml")


def test_a_reward_that_takes_the_wrong_one_for_right_fails(make_recipe: Any) -> None:
    reward = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return float(solution_str != ground_truth)\n"
    result = check(make_recipe(reward=reward))
    assert result.status is Status.FAIL
    assert "the right response '4' to '2 + 2' (ground truth '4') scores 0, expected 1 to 1" in result.evidence


def test_a_reward_that_gives_something_for_nothing_fails(make_recipe: Any) -> None:
    reward = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return float(ground_truth.startswith(solution_str))\n"
    result = check(make_recipe(reward=reward))
    assert result.status is Status.FAIL
    assert "the wrong response ''" in result.evidence


def test_a_reward_that_breaks_fails_with_its_error(make_recipe: Any) -> None:
    reward = "def compute_score(**kwargs):\n    raise KeyError('boom')\n"
    result = check(make_recipe(reward=reward))
    assert result.status is Status.FAIL
    assert "boom" in result.evidence


def test_scores_may_have_bounds_of_their_own(make_recipe: Any) -> None:
    reward = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.7 if solution_str == ground_truth else 0.2\n"
    loose = {**GOLDEN, "scores": {"right": [0.5, 1], "wrong": [0, 0.4]}}
    assert check(make_recipe(reward=reward), golden=loose).status is Status.OK


def test_prompts_that_are_not_in_the_data_are_a_warning(make_recipe: Any) -> None:
    assert check(make_recipe(), data=ROWS[2:]).status is Status.WARN


def test_no_golden_pairs_are_unknown(make_recipe: Any) -> None:
    result = check(make_recipe(), golden=None)
    assert result.status is Status.UNKNOWN
    assert "golden.yaml" in result.fix


def test_a_served_reward_model_leaves_the_scores_unknown(make_recipe: Any) -> None:
    sets = ("reward.reward_model.enable=true",)
    result = check(make_recipe(), sets=sets)
    assert result.status is Status.UNKNOWN
    assert "ground truth of 2 prompts agrees" in result.evidence
    assert check(make_recipe(name="other"), data=[("2 + 2", "5")], sets=sets).status is Status.FAIL


def test_pairs_that_need_the_served_model_are_handed_to_the_job(make_recipe: Any) -> None:
    folder = make_recipe()
    check(folder)

    def calls(*sets: str) -> list[dict[str, Any]]:
        return calls_for_job(
            resolve(load_recipe(str(folder)), run_dir=folder / "run", site=Site(), sets=sets)
        )

    assert calls() == []
    found = calls("reward.reward_model.enable=true")
    assert [(call["response"], call["kind"], call["low"], call["high"]) for call in found[:2]] == [
        ("4", "right", 1, 1),
        ("5", "wrong", 0, 0),
    ]
    assert found[0]["data_source"] == "sums"
    assert found[0]["extra_info"]["index"] == 0
    (folder / "golden.yaml").unlink()
    assert calls("reward.reward_model.enable=true") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: 1\nscores: {right: [1, 1], wrong: [0, 0]}\ncases: []\n", "cases"),
        ("schema: 1\nscores: {right: [1, 1]}\ncases: []\n", "wrong"),
        ("schema: 2\n", "schema"),
        ("cases: [\n", "golden.yaml:2"),
    ],
)
def test_a_file_in_another_form_fails_with_the_place(make_recipe: Any, text: str, said: str) -> None:
    result = check(make_recipe(), golden=text)
    assert result.status is Status.FAIL
    assert said in result.evidence + result.where


def test_the_pairs_of_every_shipped_recipe_can_be_read() -> None:
    from verl_musa.diagnose.golden import load_golden

    files = sorted((ROOT / "recipes").glob("*/golden.yaml"))
    assert files
    for file in files:
        assert load_golden(file).cases
