"""The shipped recipes and variants: nothing to complain about, and cards that say what the plan says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_musa.checks import Status
from verl_musa.data import Subject
from verl_musa.data.sizes import phases, shape_of
from verl_musa.plan import GIB
from verl_musa.recipe import Resolved, Site, list_variants, load_recipe, resolve
from verl_musa.rules import Look, check_recipe, check_recipes
from verl_musa.rules.upstream import CHECK

from .conftest import DENSE, MOE, RECIPES

NAMES = sorted(path.parent.name for path in RECIPES.glob("*/recipe.yaml"))
EVERYTHING = sorted(
    [*NAMES, *(f"{name}@{variant}" for name in NAMES for variant in list_variants(RECIPES / name))]
)
PHASES = {
    "rollout": "rollout",
    "log-probabilities": "actor, no gradients",
    "update": "actor, update",
    "weight sync": "weight sync",
}


def resolved(name: str) -> Resolved:
    recipe = load_recipe(str(RECIPES / name))
    return resolve(recipe, run_dir=Path("/runs/x/r1"), site=Site(), without_site=True)


@pytest.mark.parametrize("name", EVERYTHING)
def test_nothing_is_wrong_with_what_is_shipped(name: str) -> None:
    report = check_recipe(resolved(name), files=False, verl=False)
    assert [result for result in report.results if result.status is not Status.OK] == []
    assert report.deferred


@pytest.mark.integration
def test_verl_itself_has_nothing_against_what_is_shipped() -> None:
    reports = check_recipes([Look(resolved(name), files=False) for name in EVERYTHING])
    for name, report in zip(EVERYTHING, reports, strict=True):
        assert report.results[-1].check == CHECK
        assert report.results[-1].status is Status.OK, (name, report.results[-1])


@pytest.mark.parametrize("name", [DENSE, MOE])
def test_the_cards_memory_is_the_plans(name: str) -> None:
    subject = Subject(resolved(name))
    shape = shape_of(subject)
    assert shape is not None
    found = {phase.name: phase.total / GIB for phase in phases(subject, shape)}
    card = (RECIPES / name / "README.md").read_text(encoding="utf-8")
    for row, phase in PHASES.items():
        match = re.search(rf"^\| {row} \| ([\d.]+) \|", card, re.MULTILINE)
        assert match, row
        assert float(match.group(1)) == pytest.approx(found[phase], abs=0.06)


@pytest.mark.parametrize("name", [DENSE, MOE])
def test_the_card_names_every_departure_of_the_configuration(name: str) -> None:
    """Each override that is not derived and differs from verl's default stands in the card, by key or beside its block."""
    card = (RECIPES / name / "README.md").read_text(encoding="utf-8")
    quiet = {
        "actor_rollout_ref.rollout.val_kwargs",
        "trainer",
        "algorithm.use_kl_in_reward",
        "data.truncation",
    }
    for override in resolved(name).overrides:
        if override.forced or any(override.path.startswith(prefix) for prefix in quiet):
            continue
        if override.path in RESTATED:
            continue
        assert f"`{override.path}`" in card, override.path


# Said aloud in config.yaml although verl's default is the same.
RESTATED = {
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size",
    "actor_rollout_ref.actor.megatron.sequence_parallel",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.calculate_log_probs",
}
