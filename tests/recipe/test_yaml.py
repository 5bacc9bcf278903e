from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from verl_musa.errors import RecipeError
from verl_musa.recipe._yaml import MAX_BYTES, parse_document, parse_value, read_document

FILE = Path("x.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-6", 1e-6),
        ("3e-3", 3e-3),
        ("1E+5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1", -1),
        ("+7", 7),
        ("1_000", 1000),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("inf", math.inf),
        ("-.inf", -math.inf),
        ("'1e-6'", "1e-6"),
        ("'null'", "null"),
        ("[1, 2.0, a]", [1, 2.0, "a"]),
        ("{a: 1, b: {c: x}}", {"a": 1, "b": {"c": "x"}}),
        ("${oc.env:HOME}", "${oc.env:HOME}"),
        ("!!str 12", "12"),
    ],
)
def test_scalars_mean_what_they_mean_to_hydra(text: str, expected: Any) -> None:
    value = parse_value(text, "--set k")
    assert value == expected
    assert type(value) is type(expected)


def test_nan() -> None:
    assert math.isnan(parse_value("nan", "--set k"))
    assert math.isnan(parse_value(".nan", "--set k"))


def test_lines_of_keys_and_items() -> None:
    document = parse_document("a: 1\nb:\n  c: 2\n  d: [x,\n     y]\n", FILE)
    assert document.where(("a",)) == "x.yaml:1"
    assert document.where(("b", "c")) == "x.yaml:3"
    assert document.where(("b", "d", 1)) == "x.yaml:5"
    assert document.where(("b", "nothing", "here")) == "x.yaml:2"


def test_duplicate_key_names_both_lines() -> None:
    with pytest.raises(RecipeError, match=r"'a' is written twice") as caught:
        parse_document("a: 1\nb: 2\na: 3\n", FILE)
    assert caught.value.where == "x.yaml:3"
    assert caught.value.found == "first at line 1, again at line 3"


def test_duplicate_nested_key() -> None:
    with pytest.raises(RecipeError, match="written twice"):
        parse_document("a: {b: 1, b: 2}", FILE)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: [1\n", "x.yaml:2"),
        ("a: 1\n b: 2\n", "x.yaml:2"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2"),
        ("a: &x 1\nb: *x\n", "x.yaml:2"),
        ("a: \tb: c\n", "x.yaml:1"),
        ("a: !!int word\n", "x.yaml:1"),
        ("a: !!python/object:os.system x\n", "x.yaml:1"),
        ("a: !!binary aGk=\n", "x.yaml:1"),
        ("? [1, 2]\n: x\n", "x.yaml:1"),
    ],
)
def test_mistakes_name_the_line(text: str, where: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_document(text, FILE)
    assert caught.value.where == where
    assert caught.value.fix


def test_recursion_is_an_error() -> None:
    with pytest.raises(RecipeError, match="nested too deeply"):
        parse_document("[" * 5000 + "]" * 5000, FILE)


def test_control_character_is_an_error() -> None:
    with pytest.raises(RecipeError, match="not valid YAML"):
        parse_document("a: \x07", FILE)


def test_an_option_has_no_line_number() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_value("[1", "--set k=[1")
    assert caught.value.where == "--set k=[1"


def test_read_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(RecipeError, match="not UTF-8") as caught:
        read_document(file)
    assert caught.value.where == f"{file}:2"


def test_read_missing(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read") as caught:
        read_document(tmp_path / "none.yaml")
    assert caught.value.found == "No such file or directory"


def test_read_too_large(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(RecipeError, match="too large"):
        read_document(file)
