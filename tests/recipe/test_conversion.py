"""What recipe.yaml says about converted weights, and what it makes of it in verl's config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.errors import RecipeError
from verl_musa.recipe import Resolved, Site, load_recipe, resolve

MakeRecipe = Callable[..., Path]
TRAINER = "trainer: {config_name: ppo_megatron_trainer}\n"
CONFIG = "algorithm.adv_estimator: grpo\n"
CRITIC = 'critic: {{path: "${{recipe.dir}}/critic", architecture: {}}}\n'


def do(folder: Path, site: Site | None = None) -> Resolved:
    return resolve(load_recipe(str(folder)), run_dir=Path("/runs/tiny/r1"), site=site or Site())


def test_roles_load_what_is_declared(make_recipe: MakeRecipe) -> None:
    conversions = (
        'conversion:\n  - {roles: [actor, ref], output: "${site.shared}/policy"}\n'
        "  - {roles: [critic], output: critic-mcore, value_head: true, dtype: float32, pad_vocab: 128, spec: local}\n"
    )
    extra = TRAINER + CRITIC.format("Qwen3ForCausalLM") + conversions
    folder = make_recipe(extra=extra, config=CONFIG)
    found = do(folder, Site(shared="/shared"))
    for role in ("actor", "ref"):
        megatron = found.config["actor_rollout_ref"][role]["megatron"]
        assert megatron["use_dist_checkpointing"] is True
        assert megatron["dist_checkpointing_path"] == "/shared/policy"
    assert found.select("critic.megatron.dist_checkpointing_path") == f"{folder}/critic-mcore"
    first, second = found.recipe.conversion
    assert (first.spec, first.dtype, first.pad_vocab, first.value_head) == ("te", None, 1, False)
    assert (second.spec, second.dtype, second.pad_vocab, second.value_head) == ("local", "float32", 128, True)
    assert found.origin("critic.megatron.dist_checkpointing_path") == f"{folder}/recipe.yaml:16"


def test_nothing_is_declared(make_recipe: MakeRecipe) -> None:
    found = do(make_recipe(extra=TRAINER, config=CONFIG))
    assert found.select("actor_rollout_ref.actor.megatron.use_dist_checkpointing") is False
    assert found.select("actor_rollout_ref.actor.megatron.dist_checkpointing_path", "none") == "none"


def test_config_yaml_cannot_say_it_too(make_recipe: MakeRecipe) -> None:
    key = "actor_rollout_ref.actor.megatron.dist_checkpointing_path"
    extra = f"{TRAINER}conversion: [{{roles: [actor], output: mcore}}]\n"
    folder = make_recipe(extra=extra, config=f"{CONFIG}{key}: /elsewhere\n")
    with pytest.raises(RecipeError, match=r"is decided by recipe\.yaml"):
        do(folder)


def test_a_trainer_without_megatron(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(extra="conversion: [{roles: [actor], output: mcore}]\n", config=CONFIG)
    with pytest.raises(RecipeError, match="megatron") as caught:
        do(folder)
    assert f"{folder}/recipe.yaml:12" in str(caught.value)


@pytest.mark.parametrize(
    ("conversion", "critic", "said"),
    [
        ("{roles: [], output: x}", "", "at least 1 item"),
        ("{roles: [reward], output: x}", "", "'actor', 'ref' or 'critic'"),
        ("{roles: [actor], output: x, spec: both}", "", "'te' or 'local'"),
        ("{roles: [actor], output: x, pad_vocab: 0}", "", "greater than or equal to 1"),
        ("{roles: [actor, critic], output: x}", "", "a conversion of its own"),
        ("{roles: [actor], output: x, value_head: true}", "", "value_head is for roles: [critic]"),
        ("{roles: [actor], output: x}, {roles: [ref, actor], output: y}", "", "names the role actor twice"),
        ("{roles: [critic], output: x, value_head: true}", "", "there is no 'critic' with its path"),
        ("{roles: [critic], output: x}", "Qwen3ForCausalLM", "needs value_head: true"),
        ("{roles: [critic], output: x, value_head: true}", "Qwen3ForTokenClassification", "has its own"),
        ('{roles: [actor], output: "../x"}', "", "leaves the recipe folder"),
    ],
)
def test_mistakes(make_recipe: MakeRecipe, conversion: str, critic: str, said: str) -> None:
    extra = f"conversion: [{conversion}]\n" + (CRITIC.format(critic) if critic else "")
    with pytest.raises(RecipeError) as caught:
        do(make_recipe(extra=extra))
    assert said in str(caught.value)
