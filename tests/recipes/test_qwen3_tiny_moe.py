"""The recipe qwen3-tiny-moe: its reward, and the assets that its script makes, hardly trained."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "qwen3-tiny-moe"
SOURCE = "qwen3-tiny-moe/addition"
SEED = 17
LIMIT_S = 500


def load(name: str) -> ModuleType:
    """Import one of the recipe's scripts by path, as verl does."""
    spec = importlib.util.spec_from_file_location(f"qwen3_tiny_moe_{name}", RECIPE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reward = load("reward")
make_assets = load("make_assets")


def test_the_reward_is_called_as_verl_calls_it() -> None:
    right = reward.compute_score(
        data_source=SOURCE,
        solution_str="42\n",
        ground_truth="42",
        extra_info={"split": "train", "index": 3},
        reward_router_address="unused",
    )
    assert right == {"score": 1.0, "acc": 1.0, "parsed": 1.0}
    assert reward.compute_score(SOURCE, "43", "42") == {"score": 0.0, "acc": 0.0, "parsed": 1.0}
    assert reward.compute_score(SOURCE, "The sum is 42.", "42") == {"score": 0.0, "acc": 0.0, "parsed": 0.0}


def test_data_of_another_source_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"found data_source 'openai/gsm8k', expected 'qwen3-tiny-moe/addition'"
    ):
        reward.compute_score("openai/gsm8k", "42", "42")


@pytest.mark.parametrize(("skill", "base"), [(0.5, 0.15), (0.95, 0.01), (0.95, 0.6)])
def test_a_base_model_that_rl_cannot_improve_is_refused(skill: float, base: float) -> None:
    make_assets.require_learnable({"skill": {"sampled": 0.93}, "careless": {"sampled": 0.14}}, SEED)
    with pytest.raises(
        make_assets.publish.AssetError, match=r"seed 17: found val reward .* use another seed"
    ):
        make_assets.require_learnable({"skill": {"sampled": skill}, "careless": {"sampled": base}}, SEED)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="the model is made with transformers")
    out = tmp_path_factory.mktemp("moe") / "assets"
    arguments = ["--out", str(out), "--seed", str(SEED), "--pretrain-steps", "2"]
    done = subprocess.run(
        [sys.executable, str(RECIPE / "make_assets.py"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def test_the_model_is_what_the_card_says(made: Path) -> None:
    config = json.loads((made / "model" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3MoeForCausalLM"]
    assert (config["num_local_experts"], config["num_experts_per_tok"], config["norm_topk_prob"]) == (
        8,
        2,
        True,
    )
    # Megatron's vocabulary is divided by tensor parallelism, and equals the tokenizer's so that both normalise alike.
    assert config["vocab_size"] % 128 == 0
    card = (RECIPE / "README.md").read_text()
    assert "296,384 parameters" in card


def test_all_parts_are_there_and_in_the_manifest(made: Path) -> None:
    files = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    manifest = json.loads((made / "manifest.json").read_text())
    assert set(manifest["files"]) == files - {"manifest.json"}
    assert manifest["recipe"] == "qwen3-tiny-moe"
    assert {"model/model.safetensors", "mcore/metadata.json", "mcore/.metadata"} <= files
    (row, *_) = pq.read_table(made / "val.parquet").to_pylist()
    assert row["data_source"] == reward.DATA_SOURCE
