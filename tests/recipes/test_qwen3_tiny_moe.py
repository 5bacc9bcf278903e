"""The recipe qwen3-tiny-moe: its reward, and the assets that its script makes, hardly trained."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.recipes.conftest import RECIPES, contents, load_script, made_twice

SOURCE = "qwen3-tiny-moe/addition"


reward = load_script("qwen3-tiny-moe", "reward")


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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_twice("qwen3-tiny-moe", tmp_path_factory) / "first"


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
    card = (RECIPES / "qwen3-tiny-moe" / "README.md").read_text()
    assert "296,384 parameters" in card


def test_all_parts_are_there_and_in_the_manifest(made: Path) -> None:
    files = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    manifest = json.loads((made / "manifest.json").read_text())
    assert set(manifest["files"]) == files - {"manifest.json"}
    assert manifest["recipe"] == "qwen3-tiny-moe"
    assert {"model/model.safetensors", "mcore/metadata.json", "mcore/.metadata"} <= files
    (row, *_) = pq.read_table(made / "val.parquet").to_pylist()
    assert row["data_source"] == reward.DATA_SOURCE


def test_the_same_seed_gives_the_same_bytes_the_converted_ones_too(made: Path) -> None:
    first, second = contents(made), contents(made.parent / "second")
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []
