from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_musa.errors import RecipeError
from verl_musa.recipe import Site
from verl_musa.recipe._yaml import Location
from verl_musa.recipe.variables import Variables

SITE = Site(shared="/mnt", values={"models": "/models"})
VARIABLES = Variables(site=SITE, folders={"run.dir": Path("/runs/r"), "recipe.dir": Path("/recipes/t")})


def where(location: Location) -> str:
    return f"x.yaml:{'.'.join(map(str, location))}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${site.shared}/a", "/mnt/a"),
        ("${site.models}", "/models"),
        ("${run.dir}/b:${recipe.dir}", "/runs/r/b:/recipes/t"),
        ("${ run.dir }", "/runs/r"),
        ("${data.max_prompt_length}", "${data.max_prompt_length}"),
        ("${oc.select:a.b,${run.dir}}", "${oc.select:a.b,/runs/r}"),
        ("plain", "plain"),
        (3, 3),
        (None, None),
        ({"a": ["${site.shared}", 1]}, {"a": ["/mnt", 1]}),
    ],
)
def test_substitute(value: Any, expected: Any) -> None:
    assert VARIABLES.substitute(value, where) == expected


@pytest.mark.parametrize(
    ("value", "message", "place"),
    [
        ({"a": ["x", "${site.nope}"]}, r"\$\{site\.nope\} is not set", "x.yaml:a.1"),
        ("${run.dirr}", "unknown variable", "x.yaml:"),
        ("${recipe.name}", "unknown variable", "x.yaml:"),
        ("${assets.dir}", "makes no assets", "x.yaml:"),
    ],
)
def test_unknown_variable(value: Any, message: str, place: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        VARIABLES.substitute(value, where)
    assert caught.value.where == place
    assert caught.value.fix


def test_missing_site_value_says_what_to_add() -> None:
    with pytest.raises(RecipeError) as caught:
        VARIABLES.substitute("${site.model}", where)
    assert "did you mean ${site.models}?" in str(caught.value.expected)
    assert "`values: {model: …}`" in str(caught.value.fix)
    assert "site.example.yaml" in str(caught.value.fix)
    with pytest.raises(RecipeError) as caught:
        Variables(site=Site(), folders={}).substitute("${site.shared}", where)
    assert "`shared: /path`" in str(caught.value.fix)
