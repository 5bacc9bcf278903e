from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from verl_musa.cli import main
from verl_musa.errors import RecipeError
from verl_musa.recipe import Site, base_config, config_dir, load_recipe, resolve
from verl_musa.rules import CHECKS, explain
from verl_musa.rules.defaults import find_default
from verl_musa.rules.explain import GROUPS, table

from .conftest import DENSE, MOE, RECIPES, Plant

ACTOR = "actor_rollout_ref.actor"
Output = pytest.CaptureFixture[str]


def test_the_table_is_large_well_formed_and_true() -> None:
    assert len(table()) >= 100
    assert {entry["group"] for entry in table().values()} == set(GROUPS)
    known = {check.name for check in CHECKS}
    for key, entry in table().items():
        assert set(entry.get("checks", ())) <= known, key


def test_every_override_of_the_large_recipes_is_described() -> None:
    quiet = re.compile(
        r"seed|project_name|experiment_name|default_local_dir|model\.path|total_epochs|engine_kwargs|critic\.|ref\.megatron|warmup"
    )
    for name in (DENSE, MOE):
        found = resolve(load_recipe(str(RECIPES / name)), run_dir=Path("/r"), site=Site(), without_site=True)
        missing = [o.path for o in found.overrides if o.path not in table() and not quiet.search(o.path)]
        assert missing == []


def test_every_described_key_exists_in_verl_or_is_passed_on() -> None:
    from omegaconf import OmegaConf

    folder = config_dir("verl.trainer.main_ppo")
    trees = [base_config(folder, name) for name in ("ppo_trainer", "ppo_megatron_trainer")]
    passed_on = ("override_transformer_config.", "engine_kwargs.sglang.", "ppo_infer_max_token_len_per_gpu")
    for key in table():
        outer, _, last = key.rpartition(".")
        exists = any(last in set(OmegaConf.select(tree, outer, default={}) or {}) for tree in trees)
        assert exists or any(part in key for part in passed_on), key


def test_a_value_of_a_recipe(plant: Plant) -> None:
    planted = plant(DENSE, "config.yaml", "data.train_batch_size: 64", "data.train_batch_size: 96")
    found = explain("data.train_batch_size", planted.resolve())
    assert (found.value, found.default, found.group, found.origin) == (96, 1024, "data", planted.where)
    assert found.default_origin is not None
    file, _, line = found.default_origin.rpartition(":")
    assert "train_batch_size: 1024" in Path(file).read_text().splitlines()[int(line) - 1]
    assert "batch.size" in found.checks
    assert found.holds


def test_a_value_of_a_variant_and_of_recipe_yaml(plant: Plant) -> None:
    planted = plant(f"{DENSE}@two-node")
    found = explain("trainer.nnodes", planted.resolve())
    assert found.value == 2
    assert found.origin == f"{planted.folder}/variants/two-node.yaml:3"


def test_an_end_that_fits_no_other_is_enough_and_a_reference_is_followed(plant: Plant) -> None:
    resolved = plant(MOE).resolve()
    found = explain("ref.megatron.expert_model_parallel_size", resolved)
    assert found.key == "actor_rollout_ref.ref.megatron.expert_model_parallel_size"
    assert found.value == 8
    assert found.written is not None
    assert "actor_rollout_ref.actor.megatron.expert_model_parallel_size" in found.written
    assert found.origin is None


def test_a_key_that_is_not_described_still_has_value_and_default() -> None:
    found = explain("actor_rollout_ref.actor.freeze_vision_tower")
    assert (found.means, found.group, found.value, found.default) == (None, None, False, False)
    assert found.default_origin is not None
    assert found.default_origin.partition(":")[0].endswith("actor.yaml")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("trainer.nnoodes", "did you mean trainer.nnodes"),
        ("tensor_model_parallel_size", "fits several parameters"),
        ("xyzzy", "see `verl-musa explain --list`"),
    ],
)
def test_an_unknown_key_names_those_like_it(key: str, says: str) -> None:
    with pytest.raises(RecipeError) as error:
        explain(key)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("name", "path", "file", "text"),
    [
        ("ppo_trainer", "actor_rollout_ref.actor.fsdp_config.param_offload", "engine/fsdp.yaml", "param_offload: false"),
        ("ppo_megatron_trainer", f"{ACTOR}.megatron.tensor_model_parallel_size", "engine/megatron.yaml", "tensor_model_parallel_size: 1"),
        ("ppo_megatron_trainer", f"{ACTOR}.optim.min_lr", "optim/megatron.yaml", "min_lr"),
        ("ppo_megatron_trainer", f"{ACTOR}.optim.lr", "actor/actor.yaml", "lr: 1e-6"),
        ("ppo_megatron_trainer", "actor_rollout_ref.hybrid_engine", "ppo_trainer.yaml", "hybrid_engine: true"),
        ("ppo_trainer", "reward.num_workers", "reward/reward.yaml", "num_workers: 8"),
        ("ppo_trainer", "algorithm.rollout_correction.rollout_is", "algorithm/rollout_correction.yaml", "rollout_is: null"),
    ],
)  # fmt: skip
def test_a_default_is_found_where_verl_writes_it(name: str, path: str, file: str, text: str) -> None:
    found = find_default(config_dir("verl.trainer.main_ppo"), name, path)
    assert found is not None
    where, _, line = found.rpartition(":")
    assert where.endswith(file)
    assert text in Path(where).read_text().splitlines()[int(line) - 1]


def test_a_default_that_is_nowhere() -> None:
    assert find_default(config_dir("verl.trainer.main_ppo"), "ppo_trainer", "trainer.nope") is None


def test_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path) -> None:
    monkeypatch.setenv("VERL_MUSA_RECIPES", str(RECIPES))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "data.max_response_length", "qwen3-30b"]) == 0
    text = capsys.readouterr().out
    assert "32768  in qwen3-30b-a3b-moe" in text
    assert "qwen3-30b-a3b-moe/config.yaml:" in text
    assert main(["explain", "data.max_response_length", "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (value["schema"], value["recipe"], value["value"], value["group"]) == (1, None, 512, "data")
    assert main(["explain", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(group in listed for group in GROUPS)
    assert main(["explain", "data.max_respons_length"]) == 2
    assert "did you mean data.max_response_length" in capsys.readouterr().err
    assert main(["explain"]) == 2
