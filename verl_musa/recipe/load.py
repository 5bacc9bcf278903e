"""Find and read recipes and ``site.yaml``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import verl_musa
from verl_musa.errors import RecipeError
from verl_musa.recipe._yaml import Location, read_document
from verl_musa.recipe.schema import Recipe
from verl_musa.recipe.site import Site
from verl_musa.recipe.validation import validate
from verl_musa.recipe.variants import lay_over, read_variants, split_name

RECIPE_FILE = "recipe.yaml"
SITE_FILE = "site.yaml"
ROOTS_VARIABLE = "VERL_MUSA_RECIPES"
SITE_VARIABLE = "VERL_MUSA_SITE"


def default_roots() -> tuple[Path, ...]:
    """Folders that hold recipes.

    ``VERL_MUSA_RECIPES`` (folders joined by ``:``) when set; else the ``recipes`` folder of the working directory or
    its nearest ancestor that has one, then the one beside an editable install of this package.
    """
    named = os.environ.get(ROOTS_VARIABLE)
    if named:
        return tuple(Path(part).expanduser() for part in named.split(os.pathsep) if part)
    here = Path.cwd()
    found = [folder / "recipes" for folder in (here, *here.parents) if _holds_recipes(folder / "recipes")][:1]
    beside = Path(verl_musa.__file__).resolve().parents[1] / "recipes"
    if _holds_recipes(beside) and not any(beside.samefile(root) for root in found):
        found.append(beside)
    return tuple(found)


def _holds_recipes(root: Path) -> bool:
    return root.is_dir() and any(root.glob(f"*/{RECIPE_FILE}"))


def list_recipes(roots: Sequence[Path] | None = None) -> dict[str, Path]:
    """Name -> folder of every recipe under ``roots``; the first root wins where a name is found twice."""
    found: dict[str, Path] = {}
    for root in default_roots() if roots is None else roots:
        for file in sorted(root.glob(f"*/{RECIPE_FILE}")):
            found.setdefault(file.parent.name, file.parent)
    return dict(sorted(found.items()))


def find_recipe(name_or_prefix: str, roots: Sequence[Path] | None = None) -> Path:
    """Folder of the recipe with that exact name, that unique prefix, or at that path.

    Raises:
        RecipeError: none or several fit.
    """
    given = Path(name_or_prefix).expanduser()
    if os.sep in name_or_prefix or given.name in {".", ".."}:
        return _folder_at(given)
    known = list_recipes(roots)
    if name_or_prefix in known:
        return known[name_or_prefix]
    fitting = [name for name in known if name_or_prefix and name.startswith(name_or_prefix)]
    if len(fitting) == 1:
        return known[fitting[0]]
    if fitting:
        raise RecipeError(
            f"{name_or_prefix!r} fits several recipes",
            found=", ".join(fitting),
            expected="the start of one name only",
            fix="write more of the name",
        )
    searched = ", ".join(str(root) for root in (default_roots() if roots is None else roots)) or "no folder"
    close = difflib.get_close_matches(name_or_prefix, known, n=1)
    raise RecipeError(
        f"no recipe {name_or_prefix!r}",
        where=searched,
        found=", ".join(known) or "no recipes",
        expected="a recipe's name, a unique start of it, or the path of its folder",
        fix=f"did you mean {close[0]!r}?" if close else "see `verl-musa recipe list`",
    )


def _folder_at(given: Path) -> Path:
    folder = given.parent if given.name == RECIPE_FILE else given
    if not (folder / RECIPE_FILE).is_file():
        raise RecipeError(
            "no recipe at this path",
            where=str(given),
            found="nothing" if not folder.exists() else f"no {RECIPE_FILE} in it",
            expected=f"a folder with {RECIPE_FILE}",
            fix="see `verl-musa recipe list`",
        )
    return folder


def load_recipe(named: str, *, variants: Sequence[str] = (), roots: Sequence[Path] | None = None) -> Recipe:
    """Read and validate one recipe.

    Args:
        named: exact name, unique prefix, or path of a recipe folder; ``NAME@first+second`` lays variants over it.
        variants: further variants, laid over it after those.
        roots: folders to look in; None for :func:`default_roots`.

    Raises:
        RecipeError: not found, ambiguous, or with a mistake in it; the message names ``file:line``.
    """
    name, chosen = split_name(named)
    folder = find_recipe(name, roots)
    document = read_document(folder / RECIPE_FILE)
    layers = read_variants(folder, (*chosen, *variants))
    document = lay_over(document, layers)
    recipe = validate(Recipe, document).attach(document, layers)
    if recipe.name != folder.resolve().name:
        raise RecipeError(
            "the recipe's name differs from its folder's",
            where=document.where(("name",)),
            found=repr(recipe.name),
            expected=repr(folder.resolve().name),
            fix="rename the folder or correct 'name'",
        )
    for location, inner in _inner_paths(recipe):
        _check_inside(recipe, location, inner)
    return recipe


def _inner_paths(recipe: Recipe) -> Iterable[tuple[Location, str]]:
    if recipe.assets is not None:
        yield ("assets", "script"), recipe.assets.script
    if recipe.reward is not None:
        yield ("reward", "file"), recipe.reward.file


def _check_inside(recipe: Recipe, location: Location, inner: str) -> None:
    """The file exists and, symlinks resolved, lies in the recipe folder."""
    path = recipe.folder / inner
    where = recipe.document.where(location)
    if not path.is_file():
        raise RecipeError(
            f"{'.'.join(map(str, location))} names a file that does not exist",
            where=where,
            found=repr(inner),
            expected=f"a file in {recipe.folder}",
            fix="correct the name or add the file",
        )
    target = path.resolve()
    if not target.is_relative_to(recipe.folder):
        raise RecipeError(
            f"{'.'.join(map(str, location))} leaves the recipe folder",
            where=where,
            found=f"{inner!r}, a link to {target}",
            expected=f"a file inside {recipe.folder}",
            fix="copy the file into the recipe folder",
        )


def find_site() -> Path | None:
    """``VERL_MUSA_SITE`` when set, else ``site.yaml`` in the working directory or its nearest ancestor with one."""
    named = os.environ.get(SITE_VARIABLE)
    if named:
        return Path(named).expanduser()
    here = Path.cwd()
    return next(
        (folder / SITE_FILE for folder in (here, *here.parents) if (folder / SITE_FILE).is_file()), None
    )


def load_site(path: Path | None = None) -> Site:
    """Read ``site.yaml`` (:func:`find_site` when ``path`` is None); an empty Site where there is none.

    Raises:
        RecipeError: unreadable or with a mistake in it.
    """
    file = find_site() if path is None else path
    if file is None:
        return Site()
    document = read_document(file)
    site = (Site() if document.value is None else validate(Site, document)).attach(document)
    clash = next((name for name in site.values if name in Site.model_fields), None)
    if clash is not None:
        raise RecipeError(
            f"values.{clash} has the name of a known field",
            where=document.where(("values", clash)),
            expected=f"{clash!r} at the top level of the file, not under 'values'",
            fix="move the line or rename it",
        )
    return site
