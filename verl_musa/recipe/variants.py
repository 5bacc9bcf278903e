"""Variants: what a recipe is run with instead, laid over it file by file, in the order in which they are named."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from verl_musa.errors import RecipeError
from verl_musa.recipe._yaml import Document, read_document
from verl_musa.recipe.overrides import Override, layer, overrides_from
from verl_musa.recipe.schema import Layer, Variant
from verl_musa.recipe.validation import validate
from verl_musa.recipe.variables import Variables

FOLDER = "variants"
MARK = "@"
JOIN = "+"
EXTRAS = "extras"
FIXED = ("schema", "name", "seed")
"""Fields of recipe.yaml that a variant cannot replace: they say which recipe it is."""


def split_name(named: str) -> tuple[str, tuple[str, ...]]:
    """``recipe@first+second`` -> (``recipe``, (``first``, ``second``)); a path that exists is taken as it is."""
    if MARK not in named or (os.sep in named and Path(named).expanduser().exists()):
        return named, ()
    recipe, _, variants = named.rpartition(MARK)
    return recipe, tuple(variants.split(JOIN))


def list_variants(folder: Path) -> dict[str, Path]:
    """Name -> file of each variant of the recipe in ``folder``."""
    return {path.stem: path for path in sorted((folder / FOLDER).glob("*.yaml"))}


def read_variants(folder: Path, names: Sequence[str]) -> tuple[Layer, ...]:
    """Read the named variants of the recipe in ``folder``.

    Raises:
        RecipeError: there is no such variant, it is named twice, or its file has a mistake.
    """
    known = list_variants(folder)
    layers: dict[str, Layer] = {}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise RecipeError(
                f"no variant {name!r}",
                where=str(folder / FOLDER),
                found=", ".join(known) or "no variants",
                expected="names of its variants, joined by '+'",
                fix=f"did you mean {close[0]!r}?" if close else "leave the variant out, or add its file",
            )
        if name in layers:
            raise RecipeError(
                f"variant {name!r} is named twice",
                where=str(known[name]),
                expected="each variant once",
                fix="remove one of the two",
            )
        document = read_document(known[name])
        layers[name] = Layer(name, validate(Variant, document), document)
        for other in layers[name].variant.config_with:
            if other not in known:
                raise RecipeError(
                    f"variant {name!r} has settings for a variant that is not there",
                    where=document.where(("config_with", other)),
                    found=repr(other),
                    expected=f"one of {', '.join(known)}",
                    fix="correct the name, or remove the block",
                )
    return tuple(layers.values())


def lay_over(document: Document, layers: Sequence[Layer]) -> Document:
    """``recipe.yaml`` with the ``recipe`` part of each variant merged over it, and the extras of all of them.

    Raises:
        RecipeError: a variant replaces a field that says which recipe it is.
    """
    for one in layers:
        fixed = next((name for name in FIXED if name in one.variant.recipe), None)
        if fixed is not None:
            raise RecipeError(
                f"a variant cannot replace {fixed!r}",
                where=one.document.where(("recipe", fixed)),
                expected=f"fields other than {', '.join(FIXED)}",
                fix="remove the line, or write a recipe of its own",
            )
        if one.variant.recipe:
            document = _unite_extras(document, document.overlay(one.document, ("recipe",)))
    return document


def _unite_extras(before: Document, after: Document) -> Document:
    """Extras add up: a variant for the trainer and one for the rollout each bring their own."""
    given = (before.value.get(EXTRAS), after.value.get(EXTRAS))
    if all(isinstance(names, list) for names in given):
        after.value[EXTRAS] = list(dict.fromkeys(itertools.chain(*given)))
    return after


def lay_over_config(
    base: Sequence[Override], layers: Sequence[Layer], variables: Variables
) -> list[Override]:
    """The overrides of ``config.yaml`` without what the variants drop, and with what they set.

    Raises:
        RecipeError: a variant drops a key that is not there, or its ``config`` has a mistake.
    """
    overrides = list(base)
    for one in layers:
        for index, key in enumerate(one.variant.drop):
            kept = _without(overrides, key)
            if len(kept) == len(overrides):
                raise RecipeError(
                    f"variant {one.name!r} drops a key that is not set",
                    where=one.document.where(("drop", index)),
                    found=repr(key),
                    expected="a key of config.yaml, or of a variant before this one, or the start of one up to a dot",
                    fix="correct or remove the line; a key that only another variant sets belongs under drop_if_set",
                )
            overrides = kept
        for key in one.variant.drop_if_set:
            overrides = _without(overrides, key)
        overrides = layer(overrides, overrides_from(part(one, ("config",), variables)))
        for other in one.variant.config_with:
            if other in {named.name for named in layers}:
                overrides = layer(overrides, overrides_from(part(one, ("config_with", other), variables)))
    return overrides


def _without(overrides: Sequence[Override], key: str) -> list[Override]:
    return [o for o in overrides if o.path != key and not o.path.startswith(f"{key}.")]


def part(one: Layer, path: tuple[str, ...], variables: Variables) -> Document:
    """The mapping at ``path`` of a variant's file, its variables filled in, as a document with the same line numbers."""
    document, depth = one.document, len(path)
    lines = {location[depth:]: line for location, line in document.lines.items() if location[:depth] == path}
    value = getattr(one.variant, path[0])
    for name in path[1:]:
        value = value[name]
    value = variables.substitute(value, lambda inner: document.where((*path, *inner)))
    return Document(path=document.path, value=value, lines=lines)
