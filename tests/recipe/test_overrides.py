from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_musa.errors import RecipeError
from verl_musa.recipe._yaml import parse_document, parse_value
from verl_musa.recipe.overrides import Override, close_keys, layer, overrides_from, overrides_from_sets

TEXTS = st.text(
    alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12
) | st.sampled_from(
    [
        "null",
        "true",
        "1e-6",
        "007",
        "a,b",
        "[a]",
        "{a: b}",
        "${a.b}",
        "it's",
        '"',
        "\\",
        "\\'",
        "a\\",
        "=",
        "",
        " x ",
    ]
)
KEYS = st.text(alphabet="abcXYZ019_-./ :=,()[]{}\\", min_size=1, max_size=6).filter(
    lambda key: key.strip() == key and not key[0].isdigit()
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, width=64) | TEXTS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def parsed(text: str) -> Any:
    return OverridesParser.create().parse_override(text).value()


@given(VALUES)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_hydra_reads_back_what_was_written(value: Any) -> None:
    result = parsed(Override("k", value, "x").text)
    assert result == value
    assert repr(result) == repr(value)  # tells True from 1 and 1 from 1.0, at any depth


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "k=null"),
        (True, "k=true"),
        (1e-6, "k=1e-06"),
        (1, "k=1"),
        ("1e-6", "k='1e-6'"),
        ("it's", r"k='it\'s'"),
        ("${a.b}/c", "k='${a.b}/c'"),
        (["a", 1, None], "k=['a',1,null]"),
        ({"a": {"b": 0.5}}, "k={a:{b:0.5}}"),
        ({}, "k={}"),
        (math.inf, "k=inf"),
    ],
)
def test_text(value: Any, text: str) -> None:
    assert Override("k", value, "x").text == text


def test_nan_can_be_written() -> None:
    assert math.isnan(parsed(Override("k", math.nan, "x").text))


def test_signs_and_groups() -> None:
    assert Override("+a.b", 1, "x").text == "+a.b=1"
    assert (Override("++a.b", 1, "x").sign, Override("++a.b", 1, "x").path) == ("++", "a.b")
    assert Override("~a.b", None, "x").text == "~a.b"
    assert Override("actor@x.actor", "dp_actor", "x").text == "actor@x.actor=dp_actor"


@pytest.mark.parametrize("key", ["", "1", "a'b"])
def test_mapping_key_that_hydra_cannot_spell(key: str) -> None:
    with pytest.raises(RecipeError, match="cannot be written as a Hydra override") as caught:
        _ = Override("k", {key: 1}, "config.yaml:3").text
    assert caught.value.where == "config.yaml:3"


def test_from_document_keeps_order_and_lines() -> None:
    document = parse_document("b.x: 1\n# note\n+a.y: [1e-6]\n", Path("config.yaml"))
    assert overrides_from(document) == [
        Override("b.x", 1, "config.yaml:1"),
        Override("+a.y", [1e-6], "config.yaml:3"),
    ]
    assert overrides_from(parse_document("", Path("config.yaml"))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "must hold a mapping"),
        ("a: 1\n+a: 2\n", "set twice"),
        ("'a b': 1\n", "not an override key"),
        ("a=b: 1\n", "not an override key"),
        ("+: 1\n", "not an override key"),
    ],
)
def test_document_mistakes(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        overrides_from(parse_document(text, Path("config.yaml")))
    assert str(caught.value.where).startswith("config.yaml:")


def test_sets_use_the_rules_of_config_yaml() -> None:
    found = overrides_from_sets(["a.lr=1e-6", "+b=[x, 'y z']", "c=a=b", "d=", "~e"])
    assert [(o.key, o.value) for o in found] == [
        ("a.lr", 1e-6),
        ("+b", ["x", "y z"]),
        ("c", "a=b"),
        ("d", None),
        ("~e", None),
    ]
    assert found[0].origin == "--set a.lr=1e-6"
    assert found[0].value == parse_value("1e-6", "x")


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["novalue"], "needs key=value"),
        (["=1"], "not an override key"),
        (["a=1", "a=2"], "set twice on the command line"),
        (["a=[1"], "not valid YAML"),
        (["a=#1"], "reads as a comment"),
    ],
)
def test_set_mistakes(sets: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        overrides_from_sets(sets)
    assert str(caught.value.where).startswith("--set")


def test_layer_replaces_by_path() -> None:
    lower = [Override("a", 1, "f:1"), Override("+b", 2, "f:2"), Override("c", 3, "f:3")]
    upper = [Override("b", 9, "--set"), Override("a", 8, "--set"), Override("d", 7, "--set")]
    assert [(o.key, o.value, o.origin) for o in layer(lower, upper)] == [
        ("c", 3, "f:3"),
        ("+b", 9, "--set"),
        ("a", 8, "--set"),
        ("d", 7, "--set"),
    ]


def test_close_keys() -> None:
    known = ["data.train_batch_size", "data.shuffle", "actor.shuffle"]
    assert close_keys("data.train_batchsize", known)[0] == "data.train_batch_size"
    assert close_keys("trainer.shuffle", known)
    assert close_keys("zzz", known) == []
