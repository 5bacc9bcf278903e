"""``${site.X}``, ``${run.dir}``, ``${recipe.dir}`` and ``${assets.dir}``; any other ``${…}`` is left to OmegaConf."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.errors import RecipeError
from verl_musa.recipe._yaml import Location
from verl_musa.recipe.site import Site

_VARIABLE = re.compile(r"\$\{\s*(site|run|recipe|assets)\.([^}$]*?)\s*\}")
_FOLDERS = ("run.dir", "recipe.dir", "assets.dir")
UNSET = "<site."
"""Start of the text that stands for a name which the site does not set."""


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The values of one resolution.

    Attributes:
        site: the site's names.
        folders: ``run.dir``, ``recipe.dir`` and, where the recipe makes assets, ``assets.dir``.
        missing: where the site's names that are not set are noted, with the place that uses each first; the text then holds
            ``<site.NAME>``. None: a name that is not set is an error.
    """

    site: Site
    folders: Mapping[str, Path]
    missing: dict[str, str] | None = None

    def substitute(self, value: Any, where: Callable[[Location], str], location: Location = ()) -> Any:
        """Replace our variables in every text of ``value``, however deeply nested.

        ``where`` turns a location inside ``value`` into ``file:line``.

        Raises:
            RecipeError: a variable that does not exist here.
        """
        if isinstance(value, str):
            return _VARIABLE.sub(lambda match: self._value(match, where(location)), value)
        if isinstance(value, dict):
            return {key: self.substitute(item, where, (*location, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(
                self.substitute(item, where, (*location, index)) for index, item in enumerate(value)
            )
        return value

    def _value(self, match: re.Match[str], where: str) -> str:
        room, name = match.groups()
        if room == "site":
            return self._site_value(name, where)
        path = self.folders.get(f"{room}.{name}")
        if path is not None:
            return str(path)
        if (room, name) == ("assets", "dir"):
            raise RecipeError(
                "${assets.dir} is used, but the recipe makes no assets",
                where=where,
                expected="an 'assets' section in recipe.yaml",
                fix="add 'assets: {script: make_assets.py, seed: 17}', or name the files another way",
            )
        raise RecipeError(
            f"unknown variable {match.group()}",
            where=where,
            found=match.group(),
            expected="one of " + ", ".join(f"${{{folder}}}" for folder in (*_FOLDERS, "site.NAME")),
            fix="correct the name",
        )

    def _site_value(self, name: str, where: str) -> str:
        known = self.site.lookup()
        if name in known:
            return known[name]
        if self.missing is not None:
            self.missing.setdefault(name, where)
            return f"{UNSET}{name}>"
        source = self.site.source
        line = f"{name}: /path" if name == "shared" else f"values: {{{name}: …}}"
        close = difflib.get_close_matches(name, known, n=1)
        raise RecipeError(
            f"${{site.{name}}} is not set",
            where=where,
            found=f"no {name!r} in {source}" if source else "no site.yaml",
            expected=f"a value for {name!r}" + (f" (did you mean ${{site.{close[0]}}}?)" if close else ""),
            fix=f"add `{line}` to "
            + (
                str(source)
                if source
                else "site.yaml (copy site.example.yaml next to your checkout's README.md)"
            ),
        )
