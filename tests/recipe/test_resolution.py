from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.errors import RecipeError
from verl_musa.recipe import Resolved, Site, assets_dir, load_recipe, portable, resolve

MakeRecipe = Callable[..., Path]


def do(folder: Path, *sets: str, site: Site | None = None) -> Resolved:
    return resolve(load_recipe(str(folder)), run_dir=Path("/runs/tiny/r1"), site=site or Site(), sets=sets)


def test_recipe_decides_what_it_owns(make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    found = do(folder)
    config = found.config
    assert config["data"]["train_files"] == [f"{folder}/train.parquet"]
    assert config["actor_rollout_ref"]["model"]["path"] == f"{folder}/model"
    assert config["reward"]["custom_reward_function"] == {
        "path": f"{folder}/reward.py",
        "name": "compute_score",
    }
    trainer = config["trainer"]
    assert (trainer["nnodes"], trainer["n_gpus_per_node"]) == (1, 2)
    assert (trainer["project_name"], trainer["experiment_name"]) == ("tiny", "r1")
    assert trainer["default_local_dir"] == "/runs/tiny/r1/checkpoints"
    assert config["actor_rollout_ref"]["actor"]["optim"]["lr"] == 3e-3
    assert config["actor_rollout_ref"]["model"]["override_config"]["attn_implementation"] == "sdpa"
    assert found.recipe.model.path == f"{folder}/model"
    assert (found.seed, found.assets_dir, found.runtime_env) == (17, None, {})


def test_every_seed_of_verl_is_set(make_recipe: MakeRecipe) -> None:
    found = do(make_recipe())
    config = found.config
    assert config["data"]["seed"] == 17
    assert config["actor_rollout_ref"]["actor"]["data_loader_seed"] == 17
    assert config["actor_rollout_ref"]["actor"]["fsdp_config"]["seed"] == 17
    assert config["actor_rollout_ref"]["ref"]["fsdp_config"]["seed"] == 17
    assert config["actor_rollout_ref"]["rollout"]["seed"] == 17


def test_megatron_seeds_follow_the_group(make_recipe: MakeRecipe) -> None:
    found = do(make_recipe(), "model_engine=megatron", "actor_rollout_ref.actor.strategy=megatron")
    assert found.config["actor_rollout_ref"]["actor"]["megatron"]["seed"] == 17


def test_origins(make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    found = do(folder, "trainer.total_training_steps=4")
    assert found.origin("data.seed") == f"{folder}/recipe.yaml:11"
    assert found.origin("actor_rollout_ref.rollout.n") == f"{folder}/config.yaml:11"
    assert found.origin("trainer.total_training_steps") == "--set trainer.total_training_steps=4"
    assert found.origin("trainer.save_freq").startswith("verl's default")
    assert found.overrides[-1].text == "trainer.total_training_steps=4"


@pytest.mark.parametrize(
    "key", ["trainer.nnodes", "data.seed", "actor_rollout_ref.model.path", "++trainer.nnodes"]
)
def test_owned_key_in_config_names_both_places(key: str, make_recipe: MakeRecipe) -> None:
    folder = make_recipe(config=f"data.train_batch_size: 8\n{key}: 3\n")
    with pytest.raises(RecipeError, match=r"is decided by recipe\.yaml") as caught:
        do(folder)
    assert caught.value.where == f"{folder}/config.yaml:2"
    assert f"{folder}/recipe.yaml:" in str(caught.value.expected)
    assert "--set" in str(caught.value.fix)


def test_set_may_override_owned_and_written_keys(make_recipe: MakeRecipe) -> None:
    found = do(
        make_recipe(),
        "trainer.n_gpus_per_node=1",
        "data.seed=3",
        "actor_rollout_ref.model.override_config.attn_implementation=eager",
        "actor_rollout_ref.rollout.n=2",
    )
    assert found.config["trainer"]["n_gpus_per_node"] == 1
    assert found.config["data"]["seed"] == 3
    assert found.config["actor_rollout_ref"]["model"]["override_config"]["attn_implementation"] == "eager"
    assert found.config["actor_rollout_ref"]["rollout"]["n"] == 2


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("data.train_batchsize=4", "no key 'data.train_batchsize'"),
        ("data.train_batch_size=many", "wrong type for 'data.train_batch_size'"),
        ("data.train_batch_size", "needs key=value"),
        ("trainer.project_name=${site.nope}", "is not set"),
    ],
)
def test_set_mistakes(sets: str, message: str, make_recipe: MakeRecipe) -> None:
    with pytest.raises(RecipeError) as caught:
        do(make_recipe(), sets)
    assert message in caught.value.message
    assert str(caught.value.where).startswith("--set ")


def test_variables_everywhere(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(
        replace=(('path: "${recipe.dir}/model"', 'path: "${site.models}/tiny"'),),
        config="trainer.rollout_data_dir: ${run.dir}/rollouts\ntrainer.validation_data_dir: ${trainer.rollout_data_dir}/v\n",
        runtime_env='env_vars: {A: "${run.dir}", B: "${site.shared}"}\n',
    )
    found = do(
        folder, "trainer.default_hdfs_dir=${recipe.dir}/x", site=Site(shared="/mnt", values={"models": "/m"})
    )
    assert found.config["actor_rollout_ref"]["model"]["path"] == "/m/tiny"
    assert found.config["trainer"]["rollout_data_dir"] == "/runs/tiny/r1/rollouts"
    assert found.config["trainer"]["validation_data_dir"] == "${trainer.rollout_data_dir}/v"
    assert found.config["trainer"]["default_hdfs_dir"] == f"{folder}/x"
    assert found.runtime_env == {"env_vars": {"A": "/runs/tiny/r1", "B": "/mnt"}}


def test_missing_site_value_names_the_line(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(replace=(("${recipe.dir}/val.parquet", "${site.data}/val.parquet"),))
    with pytest.raises(RecipeError, match=r"\$\{site\.data\} is not set") as caught:
        do(folder)
    assert caught.value.where == f"{folder}/recipe.yaml:8"


def test_relative_paths_stay_inside(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(replace=(('path: "${recipe.dir}/model"', "path: model"),))
    assert do(folder).config["actor_rollout_ref"]["model"]["path"] == f"{folder}/model"
    folder = make_recipe(replace=(('path: "${recipe.dir}/model"', "path: ../model"),))
    with pytest.raises(RecipeError, match=r"model\.path leaves the recipe folder"):
        do(folder)


def test_assets_dir(make_recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = make_recipe(
        extra="assets: {script: make.py, seed: 1}\n",
        replace=(("${recipe.dir}/model", "${assets.dir}/model"),),
    )
    (folder / "make.py").write_text("", encoding="utf-8")
    found = do(folder)
    assert found.assets_dir == assets_dir(load_recipe(str(folder)))
    assert found.config["actor_rollout_ref"]["model"]["path"] == f"{found.assets_dir}/model"
    assert not (tmp_path / "cache").exists(), "resolve must not make anything"


def test_config_yaml_is_needed(make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    (folder / "config.yaml").unlink()
    with pytest.raises(RecipeError, match="cannot read"):
        do(folder)


def test_a_recipe_without_reward(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(replace=(("reward: {file: reward.py, function: compute_score}\n", ""),))
    assert do(folder).config["reward"]["custom_reward_function"]["path"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "must hold a mapping"),
        ("env_vars: [A]", "env_vars must be a mapping"),
        ("env_vars: {OMP_NUM_THREADS: 1}", "OMP_NUM_THREADS must be text"),
        ('env_vars: {VERL_MUSA_EXPECT: "x"}', "set by the run itself"),
    ],
)
def test_runtime_env_mistakes(text: str, message: str, make_recipe: MakeRecipe) -> None:
    folder = make_recipe(runtime_env=f"# comment\n{text}\n")
    with pytest.raises(RecipeError) as caught:
        do(folder)
    assert message in caught.value.message
    assert str(caught.value.where).startswith(f"{folder}/runtime_env.yaml:")


def test_portable_holds_no_folder_of_this_machine(make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    text = str(portable(do(folder)))
    assert str(folder) not in text
    assert "/runs/tiny" not in text
    assert "<recipe.dir>/train.parquet" in text
    assert "<run.dir>/checkpoints" in text
    assert "<run.id>" in text
