"""The variant gsm8k of qwen3-tiny-dense: its reward on its golden pairs, and the model that its script makes, hardly trained."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from verl_musa.diagnose.golden import load_golden

VARIANT = Path(__file__).parents[2] / "recipes" / "qwen3-tiny-dense" / "variants" / "gsm8k"
SOURCE = "openai/gsm8k"
LIMIT_S = 500


def load(name: str) -> ModuleType:
    """Import one of the variant's scripts by path, as verl does."""
    spec = importlib.util.spec_from_file_location(f"qwen3_tiny_gsm8k_{name}", VARIANT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


reward = load("math_reward")


def test_golden_pairs() -> None:
    golden = load_golden(VARIANT / "golden.yaml")
    for case in golden.cases:
        for expected, responses in ((1.0, case.right), (0.0, case.wrong)):
            scores = {
                response: reward.compute_score(SOURCE, response, case.ground_truth)["score"]
                for response in responses
            }
            assert scores == dict.fromkeys(responses, expected)


def test_data_of_another_source_is_refused() -> None:
    with pytest.raises(ValueError, match=r"found data_source 'sums', expected 'openai/gsm8k'"):
        reward.compute_score("sums", "\\boxed{42}", "42")


def test_the_problems_have_the_form_of_the_prepared_data() -> None:
    make_model = load("make_model")
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
