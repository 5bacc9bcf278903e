from __future__ import annotations

import pytest

from verl_musa.data.toy.scoring import exact_number, parse_answer


@pytest.mark.parametrize("text", ["42", " 42", "42\n", "\t42 \r\n"])
def test_the_right_number_earns_one(text: str) -> None:
    assert exact_number(text, "42") == {"score": 1.0, "acc": 1.0, "parsed": 1.0}


@pytest.mark.parametrize("text", ["43", "-42", "4", "420", "0"])
def test_a_wrong_number_is_parsed(text: str) -> None:
    assert exact_number(text, "42") == {"score": 0.0, "acc": 0.0, "parsed": 1.0}


@pytest.mark.parametrize(
    "text",
    ["", " ", "forty-two", "42.0", "+42", "042", "4 2", "42 42", "= 42", "-0", "\u0664\u0662", "42\x00"],
)
def test_anything_else_is_malformed(text: str) -> None:
    assert parse_answer(text) is None
    assert exact_number(text, "42") == {"score": 0.0, "acc": 0.0, "parsed": 0.0}


@pytest.mark.parametrize("truth", [42, None, "", "forty-two", "42 43"])
def test_a_ground_truth_that_is_no_number_is_refused(truth: object) -> None:
    with pytest.raises(ValueError, match="expected a whole number as text"):
        exact_number("42", truth)
