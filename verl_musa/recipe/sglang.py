"""The ``sglang`` block of recipe.yaml, turned into verl's override keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_musa.errors import RecipeError
from verl_musa.recipe.overrides import Override
from verl_musa.recipe.schema import Recipe
from verl_musa.recipe.validation import describe

SERVER = "actor_rollout_ref.rollout.engine_kwargs.sglang"
ENFORCE_EAGER = "actor_rollout_ref.rollout.enforce_eager"
FREE_CACHE = "actor_rollout_ref.rollout.free_cache_engine"


def _settings(option: str, value: Any) -> dict[str, Any]:
    """Override key -> value for one option. SGLang's names are those of its ``ServerArgs``; verl merges them last."""
    match option:
        case "graphs":
            return {ENFORCE_EAGER: not value, f"+{SERVER}.disable_cuda_graph": not value}
        case "radix_cache" | "overlap_schedule":
            return {f"+{SERVER}.disable_{option}": not value}
        case "memory_saver":
            return {FREE_CACHE: value, f"+{SERVER}.enable_memory_saver": value}
    return {f"+{SERVER}.{option}": value}


def sglang_overrides(recipe: Recipe) -> list[Override]:
    """The overrides that the recipe's ``sglang`` block stands for; options that are left out give none."""
    if recipe.sglang is None:
        return []
    given = recipe.sglang.model_dump(exclude_none=True)
    return [
        Override(key, setting, recipe.document.where(("sglang", option)), forced=True)
        for option, value in given.items()
        for key, setting in _settings(option, value).items()
    ]


def refuse_second_setting(written: Sequence[Override], server: Sequence[Override]) -> None:
    """Refuse what ``config.yaml`` sets again, at its own key or within a mapping.

    Raises:
        RecipeError: one option is set in both places.
    """
    owned = {override.path: override for override in server}
    for override in written:
        for path, value in _leaves(override.path, override.value):
            owner = owned.get(path)
            if owner is not None:
                raise RecipeError(
                    f"{path} is decided by the sglang block of recipe.yaml",
                    where=override.origin,
                    found=f"{path}: {describe(value)}",
                    expected=f"the value that {owner.origin} gives: {describe(owner.value)}",
                    fix=f"remove it here and change {owner.origin}; for one run use --set {path}=…",
                )


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(path, value)]
    return [leaf for key, item in value.items() for leaf in _leaves(f"{path}.{key}", item)]
