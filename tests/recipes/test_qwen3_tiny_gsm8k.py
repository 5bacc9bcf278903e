"""The variant gsm8k of qwen3-tiny-dense: its reward on its golden pairs, and the model that its script makes, hardly trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.recipes.conftest import RECIPES, load_script
from verl_musa.checks import Status
from verl_musa.diagnose import golden_results
from verl_musa.diagnose.golden import load_golden
from verl_musa.recipe import Site, load_recipe, resolve

FOLDER = "qwen3-tiny-dense/variants/gsm8k"
VARIANT = RECIPES / FOLDER
SOURCE = "openai/gsm8k"
LIMIT_S = 500


reward = load_script(FOLDER, "math_reward")


def test_golden_pairs() -> None:
    golden = load_golden(VARIANT / "golden.yaml")
    for case in golden.cases:
        for expected, responses in ((1.0, case.right), (0.0, case.wrong)):
            scores = {
                response: reward.compute_score(SOURCE, response, case.ground_truth)["score"]
                for response in responses
            }
            assert scores == dict.fromkeys(responses, expected)


def test_a_missing_ground_truth_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"math_reward.py: data_source 'openai/gsm8k': found ground_truth ''"
    ):
        reward.compute_score(SOURCE, "\\boxed{42}", "")


def test_the_problems_have_the_form_of_the_prepared_data() -> None:
    make_model = load_script(FOLDER, "make_model")
    problems = make_model.word_problems(17)
    assert problems == make_model.word_problems(17) != make_model.word_problems(18)
    assert all(problem.question.endswith(make_model.BOXED) for problem in problems)
    assert {problem.answer for problem in problems} >= {"\\boxed{1}", "\\boxed{2}"}
    lengths = [len(problem.question) for problem in problems]
    assert min(lengths) < 200
    assert max(lengths) > 500


def test_the_model_takes_long_prompts(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the model is made with transformers")
    out = tmp_path / "assets"
    command = [
        sys.executable,
        "-P",
        str(VARIANT / "make_model.py"),
        "--out",
        str(out),
        "--seed",
        "17",
        "--pretrain-steps",
        "1",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    config = json.loads((out / "model" / "config.json").read_text())
    assert (config["architectures"], config["max_position_embeddings"]) == (["Qwen3ForCausalLM"], 1024)
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert set(json.loads((out / "manifest.json").read_text())["files"]) == files - {"manifest.json"}
    again = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (again.returncode, "is not an empty folder" in again.stderr) == (2, True)


def test_the_gate_takes_the_golden_pairs_with_the_variant_s_data(tmp_path: Path) -> None:
    """Before any job: no golden prompt stands in the data, so the pairs come with a data source that is not the data's."""
    row: dict[str, Any] = {"data_source": SOURCE, "prompt": [{"role": "user", "content": "1+1?"}]}
    row |= {"reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 0}}
    for split in ("train", "val"):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / f"{split}.parquet")
    recipe = load_recipe(str(VARIANT.parents[1]), variants=("gsm8k",))
    resolved = resolve(recipe, run_dir=tmp_path / "run", site=Site(values={"gsm8k": str(tmp_path)}))
    (result,) = golden_results(resolved)
    # No failure: a run goes on. The warning says that the data's own ground truth was not compared.
    assert result.status is Status.WARN, result
    assert "take the prompts from the data" in result.fix
