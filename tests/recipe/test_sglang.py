from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CONFIG
from verl_musa.errors import RecipeError
from verl_musa.recipe import Site, load_recipe, resolve

MakeRecipe = Callable[..., Path]
PLAIN = "\n".join(CONFIG.splitlines()[:-2]) + "\n"
"""Without the two lines that set options of the server."""


def rollout(folder: Path, *sets: str) -> dict[str, Any]:
    resolved = resolve(load_recipe(str(folder)), run_dir=Path("/runs/tiny/r1"), site=Site(), sets=sets)
    found: dict[str, Any] = resolved.config["actor_rollout_ref"]["rollout"]
    return found


@pytest.mark.parametrize(
    ("option", "server", "verl"),
    [
        ("attention_backend: fa3", {"attention_backend": "fa3"}, {}),
        ("graphs: false", {"disable_cuda_graph": True}, {"enforce_eager": True}),
        ("graphs: true", {"disable_cuda_graph": False}, {"enforce_eager": False}),
        ("radix_cache: false", {"disable_radix_cache": True}, {}),
        ("overlap_schedule: false", {"disable_overlap_schedule": True}, {}),
        ("memory_saver: true", {"enable_memory_saver": True}, {"free_cache_engine": True}),
        ("memory_saver: false", {"enable_memory_saver": False}, {"free_cache_engine": False}),
        ("page_size: 64", {"page_size": 64}, {}),
    ],
)
def test_each_option_reaches_the_server(
    option: str, server: dict[str, Any], verl: dict[str, Any], make_recipe: MakeRecipe
) -> None:
    found = rollout(make_recipe(extra=f"sglang: {{{option}}}\n", config=PLAIN))
    assert found["engine_kwargs"]["sglang"] == server
    assert {name: found[name] for name in verl} == verl


def test_without_the_block_nothing_is_set(make_recipe: MakeRecipe) -> None:
    assert not rollout(make_recipe(config=PLAIN))["engine_kwargs"].get("sglang")


def test_other_options_in_config_are_kept(make_recipe: MakeRecipe) -> None:
    config = (
        PLAIN + "+actor_rollout_ref.rollout.engine_kwargs.sglang: {device: cpu, max_total_tokens: 8192}\n"
    )
    found = rollout(make_recipe(extra="sglang: {page_size: 64}\n", config=config))
    assert found["engine_kwargs"]["sglang"] == {"device": "cpu", "max_total_tokens": 8192, "page_size": 64}


def test_a_set_wins(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(extra="sglang: {page_size: 64}\n", config=PLAIN)
    found = rollout(folder, "actor_rollout_ref.rollout.engine_kwargs.sglang.page_size=1")
    assert found["engine_kwargs"]["sglang"]["page_size"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "+actor_rollout_ref.rollout.engine_kwargs.sglang: {page_size: 1}",
        "+actor_rollout_ref.rollout.engine_kwargs: {sglang: {page_size: 1}}",
        "+actor_rollout_ref.rollout.engine_kwargs.sglang.page_size: 1",
    ],
)
def test_setting_it_in_both_places_is_refused(line: str, make_recipe: MakeRecipe) -> None:
    folder = make_recipe(extra="sglang: {page_size: 64}\n", config=f"{PLAIN}{line}\n")
    with pytest.raises(RecipeError, match="decided by the sglang block") as caught:
        rollout(folder)
    assert caught.value.where == f"{folder}/config.yaml:{PLAIN.count(chr(10)) + 1}"
    assert f"{folder}/recipe.yaml:" in str(caught.value.expected)


def test_an_unknown_attention_backend_is_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RecipeError, match=r"sglang\.attention_backend"):
        rollout(make_recipe(extra="sglang: {attention_backend: fa9}\n"))
