"""Recipes: what a user types, checked and turned into verl's config.

Public face: :func:`load_recipe`, :func:`list_recipes`, :func:`load_site`, :func:`resolve`, :func:`ensure_assets`.
"""

from __future__ import annotations

from verl_musa.recipe._yaml import parse_value, read_document
from verl_musa.recipe.assets import assets_dir, discard_assets, ensure_assets
from verl_musa.recipe.compose import base_config, config_dir, dump_config, selects_group
from verl_musa.recipe.load import default_roots, list_recipes, load_recipe, load_site
from verl_musa.recipe.overrides import Override, close_keys
from verl_musa.recipe.resolution import MEGATRON, Resolved, portable, resolve
from verl_musa.recipe.schema import Recipe, Trainer
from verl_musa.recipe.site import Site
from verl_musa.recipe.sizes import sized
from verl_musa.recipe.variables import UNSET
from verl_musa.recipe.variants import list_variants

__all__ = [
    "MEGATRON",
    "UNSET",
    "Override",
    "Recipe",
    "Resolved",
    "Site",
    "Trainer",
    "assets_dir",
    "base_config",
    "close_keys",
    "config_dir",
    "default_roots",
    "discard_assets",
    "dump_config",
    "ensure_assets",
    "list_recipes",
    "list_variants",
    "load_recipe",
    "load_site",
    "parse_value",
    "portable",
    "read_document",
    "resolve",
    "selects_group",
    "sized",
]
