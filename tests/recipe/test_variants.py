from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.errors import RecipeError
from verl_musa.recipe import Resolved, Site, list_variants, load_recipe, portable, resolve
from verl_musa.recipe.variants import split_name

MakeRecipe = Callable[..., Path]

SMALL = """\
summary: Fewer devices
recipe: {cluster: {devices_per_node: 1}, accept: {score_last5_min: 0.25}}
drop: [actor_rollout_ref.model]
config:
  actor_rollout_ref.rollout.n: 2
  trainer.save_freq: 3
  +actor_rollout_ref.rollout.engine_kwargs.sglang.page_size: 64
  trainer.rollout_data_dir: "${run.dir}/rollouts"
env_vars: {OMP_NUM_THREADS: "2"}
"""
LATER = "summary: Saves more often\nconfig: {trainer.save_freq: 1}\n"


def variant(folder: Path, name: str, text: str) -> Path:
    path = folder / "variants" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def folder(make_recipe: MakeRecipe) -> Path:
    made = make_recipe(runtime_env='env_vars: {OMP_NUM_THREADS: "1", A: "x"}\n')
    variant(made, "small", SMALL)
    variant(made, "later", LATER)
    return made


def do(folder: Path, *variants: str) -> Resolved:
    recipe = load_recipe(str(folder), variants=variants)
    return resolve(recipe, run_dir=Path("/runs/tiny/r1"), site=Site())


def test_a_variant_replaces_drops_and_adds(folder: Path) -> None:
    plain, small = do(folder), do(folder, "small")
    assert small.recipe.cluster.devices_per_node == 1
    assert small.recipe.cluster.cpus_per_node == plain.recipe.cluster.cpus_per_node
    assert small.recipe.accept is not None
    assert small.recipe.accept.score_last5_min == 0.25
    assert small.config["trainer"]["n_gpus_per_node"] == 1
    assert small.config["trainer"]["save_freq"] == 3
    assert small.config["trainer"]["rollout_data_dir"] == "/runs/tiny/r1/rollouts"
    assert small.config["actor_rollout_ref"]["rollout"]["n"] == 2
    assert small.config["actor_rollout_ref"]["rollout"]["engine_kwargs"]["sglang"]["page_size"] == 64
    assert "attn_implementation" in plain.config["actor_rollout_ref"]["model"]["override_config"]
    assert "attn_implementation" not in small.config["actor_rollout_ref"]["model"]["override_config"]
    assert small.runtime_env["env_vars"] == {"OMP_NUM_THREADS": "2", "A": "x"}
    assert portable(small)["trainer"]["rollout_data_dir"] == "<run.dir>/rollouts"


def test_what_recipe_yaml_owns_stays(folder: Path) -> None:
    """Dropping ``actor_rollout_ref.model`` drops what config.yaml says there, not the path of recipe.yaml."""
    assert do(folder, "small").config["actor_rollout_ref"]["model"]["path"] == f"{folder}/model"


def test_later_variants_win_in_the_order_given(folder: Path) -> None:
    assert do(folder, "small", "later").config["trainer"]["save_freq"] == 1
    assert do(folder, "later", "small").config["trainer"]["save_freq"] == 3


def test_names_in_one_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_MUSA_RECIPES", str(folder.parent))
    recipe = load_recipe("ti@small+later")
    assert recipe.variants == ("small", "later")
    assert recipe.title == "tiny@small+later"
    assert load_recipe(f"{folder}@later", variants=("small",)).title == "tiny@later+small"
    assert load_recipe("tiny").title == "tiny"
    assert list_variants(folder) == {
        name: folder / "variants" / f"{name}.yaml" for name in ("later", "small")
    }


def test_a_path_with_the_mark_in_it_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a@b").mkdir()
    assert split_name(str(tmp_path / "a@b")) == (str(tmp_path / "a@b"), ())
    assert split_name("a@b") == ("a", ("b",))


def test_origins_name_the_variants_file(folder: Path) -> None:
    small = do(folder, "small")
    file = folder / "variants" / "small.yaml"
    assert small.origin("trainer.save_freq") == f"{file}:6"
    assert small.origin("trainer.n_gpus_per_node") == f"{file}:2"
    assert small.origin("trainer.nnodes") == f"{folder}/recipe.yaml:10"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("summary: x\nrecipe:\n  name: other\n", "cannot replace 'name'", 3),
        ("summary: x\nrecipe:\n  seed: 3\n", "cannot replace 'seed'", 3),
        ("summary: x\nrecipe:\n  cluster:\n    nodse: 2\n", "unknown key 'cluster.nodse'", 4),
        ("summary: x\nrecipe:\n  cluster: {nodes: two}\n", "wrong type for 'cluster.nodes'", 3),
        ("summary: x\ndrop:\n  - trainer.save_freq\n", "drops a key that is not set", 3),
        ("summary: x\nconfig:\n  trainer.nnodes: 2\n", "decided by recipe.yaml", 3),
        ("summary: x\nconfig:\n  data.seed: 2\n", "decided by recipe.yaml", 3),
        ("summary: x\nconfig:\n  trainer.save_frq: 2\n", "trainer.save_frq", 3),
        ("summary: x\nconfig:\n  a..b: 2\n", "not an override key", 3),
        ("summary: x\nenv_vars:\n  VERL_MUSA_RUN_ID: '1'\n", "set by the run itself", 3),
        ("summary: x\nenv_vars:\n  OMP: 1\n", "wrong type for 'env_vars.OMP'", 3),
        ("summary: x\nconfg: {}\n", "unknown key 'confg'", 2),
        ("config: {}\n", "key 'summary' is missing", 1),
        ("summary: x\nconfig:\n  trainer.save_freq: ${site.nowhere}\n", "is not set", 3),
    ],
)
def test_a_mistake_names_file_and_line(folder: Path, text: str, message: str, line: int) -> None:
    path = variant(folder, "bad", text)
    with pytest.raises(RecipeError) as caught:
        do(folder, "bad")
    assert message in caught.value.message
    assert caught.value.where == f"{path}:{line}"


def test_no_such_variant(folder: Path) -> None:
    with pytest.raises(RecipeError, match="no variant 'smal'") as caught:
        do(folder, "smal")
    assert caught.value.found == "later, small"
    assert caught.value.fix == "did you mean 'small'?"


def test_a_variant_twice(folder: Path) -> None:
    with pytest.raises(RecipeError, match="named twice"):
        do(folder, "small", "small")


def test_a_variant_may_drop_what_one_before_it_set(folder: Path) -> None:
    variant(folder, "undo", "summary: x\ndrop: [trainer.save_freq]\n")
    assert (
        do(folder, "later", "undo").config["trainer"]["save_freq"]
        == do(folder).config["trainer"]["save_freq"]
    )
    with pytest.raises(RecipeError, match="drops a key that is not set"):
        do(folder, "undo", "later")


def test_a_variant_may_drop_what_another_sets_if_it_is_named(folder: Path) -> None:
    variant(folder, "undo", "summary: x\ndrop_if_set: [trainer.save_freq, critic.optim]\n")
    plain = do(folder)
    assert do(folder, "later").config["trainer"]["save_freq"] == 1
    for named in (("undo",), ("later", "undo")):
        assert do(folder, *named).config["trainer"]["save_freq"] == plain.config["trainer"]["save_freq"]
    # What it says itself is laid over afterwards.
    variant(folder, "both", "summary: x\ndrop_if_set: [trainer.save_freq]\nconfig: {trainer.save_freq: 7}\n")
    assert do(folder, "later", "both").config["trainer"]["save_freq"] == 7


def test_a_variant_may_set_more_beside_another_one(folder: Path) -> None:
    variant(folder, "more", "summary: x\nconfig_with:\n  later: {trainer.save_freq: 9}\n")
    plain = do(folder)
    assert do(folder, "more").config["trainer"]["save_freq"] == plain.config["trainer"]["save_freq"]
    beside = do(folder, "later", "more")
    assert beside.config["trainer"]["save_freq"] == 9
    assert beside.origin("trainer.save_freq").endswith("variants/more.yaml:3")
    variant(folder, "wrong", "summary: x\nconfig_with:\n  latter: {trainer.save_freq: 9}\n")
    with pytest.raises(RecipeError, match="settings for a variant that is not there") as caught:
        do(folder, "wrong")
    assert "wrong.yaml:3" in str(caught.value)


def test_pools_belong_to_split_alone(folder: Path) -> None:
    pools = "pools: {trainer: {nodes: 1, devices_per_node: 1}, rollout: {nodes: 1, devices_per_node: 1}}"
    variant(folder, "split", f"summary: x\nrecipe:\n  placement: split\n  {pools}\n")
    variant(folder, "half", "summary: x\nrecipe: {placement: split}\n")
    config = do(folder, "split").config
    assert (config["trainer"]["nnodes"], config["trainer"]["n_gpus_per_node"]) == (1, 1)
    assert config["actor_rollout_ref"]["rollout"]["n_gpus_per_node"] == 1
    with pytest.raises(RecipeError):
        do(folder, "half")


def test_extras_add_up(folder: Path) -> None:
    variant(folder, "trainer", "summary: x\nrecipe: {extras: [megatron]}\n")
    variant(folder, "rollout", "summary: x\nrecipe: {extras: [vllm, megatron]}\n")
    assert load_recipe(f"{folder}@trainer+rollout").extras == ("megatron", "vllm")
    variant(folder, "wrong", "summary: x\nrecipe: {extras: vllm}\n")
    with pytest.raises(RecipeError, match="extras"):
        load_recipe(f"{folder}@trainer+wrong")
