from __future__ import annotations

import re

import pytest

from verl_musa.recipe.compose import _paths, base_config, config_dir
from verl_musa.recipe.removed import REMOVED, replacement


@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer"])
def test_verl_has_none_of_the_removed_options(name: str) -> None:
    known = set(_paths(base_config(config_dir("verl.trainer.main_ppo"), name)))
    for pattern in REMOVED:
        assert [path for path in known if re.fullmatch(pattern, path)] == []


def test_what_stands_in_their_place() -> None:
    assert replacement("critic.megatron.grad_offload") == "param_offload frees gradients too"
    assert replacement("data.train_batch_size") is None
