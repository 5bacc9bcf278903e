# ruff: noqa: RUF001 - full-width forms are what is tested
from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_musa.reward.form import normal
from verl_musa.reward.quantity import quantity, same


def read(text: str) -> Fraction | None:
    found = quantity(normal(text))
    return None if found is None else found.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42), ("-42", -42), ("+42", 42), ("042", 42), ("−42", -42), ("４２", 42), ("42.", 42), ("42.50", Fraction(85, 2)), (".5", Fraction(1, 2)),
        ("1,234", 1234), ("1{,}234{,}567", 1234567), ("1\\,234", 1234), ("1，234", 1234), ("$1,234.50", Fraction(2469, 2)), ("\\$5", 5), ("-$5", -5), ("$-5", -5),
        ("1/2", Fraction(1, 2)), ("-1/2", Fraction(-1, 2)), ("\\frac{1}{2}", Fraction(1, 2)), ("\\dfrac12", Fraction(1, 2)), ("-\\frac{3}{4}", Fraction(-3, 4)),
        ("\\frac{-3}{4}", Fraction(-3, 4)), ("1\\frac{1}{2}", Fraction(3, 2)), ("1 1/2", Fraction(3, 2)), ("½", Fraction(1, 2)),
        ("1.5\\times10^{3}", 1500), ("2*10^-2", Fraction(1, 50)), ("5 million", 5_000_000), ("5万", 50_000), ("3亿元", 300_000_000), ("5百", 500),
        ("18 dollars", 18), ("18 US dollars", 18), ("18 miles per hour", 18), ("18\\text{ cm}^2", 18), ("18 cm^2", 18), ("18cm", 18), ("18元", 18), ("18 平方厘米", 18),
        ("90^\\circ", 90), ("90°", 90), ("20°C", 20), ("$5$", 5), ("\\text{5}", 5), ("**5**", 5), ("\\mathbf{5}", 5), ("5 m", 5),
    ],
)  # fmt: skip
def test_numbers(text: str, value: Fraction | int) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "5x", "5 x", "x=5", "1 2", "1,23", "1,2", "5 or 6", "5 less than 6", "5 half", "5 dozen", "5点3", "5分之2", "1/0", "\\frac{1}{0}", "--5", "1.2.3", "5^2",
     "5!", "\\sqrt{5}", "(5)", "5 squared", "five", "5 not", "10^{999}", "2*10^{999}", "1e5", "十二"],
)  # fmt: skip
def test_what_is_no_plain_number(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("answer", "truth", "equal"),
    [
        ("42", "42.0", True),
        ("42.00000001", "42", False),
        ("41.9999", "42", False),
        ("0.333333", "1/3", True),
        ("0.3333", "1/3", False),
        ("0.0000001", "0.0000002", False),
        ("3.14", "3.14159", False),
        ("75%", "75", True),
        ("75", "75%", True),
        ("75%", "0.75", True),
        ("0.75", "75%", True),
        ("0.75", "75", False),
        ("50%", "0.5%", False),
        ("百分之75", "75\\%", True),
        ("75 percent", "0.75", True),
    ],
)
def test_equality(answer: str, truth: str, equal: bool) -> None:
    given, wanted = quantity(normal(answer)), quantity(normal(truth))
    assert given is not None
    assert wanted is not None
    assert same(given, wanted) is equal


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_whole_numbers_are_exact(a: int, b: int) -> None:
    left, right = quantity(f"{a:,}"), quantity(str(b))
    assert left is not None
    assert right is not None
    assert same(left, right) is (a == b)


@pytest.mark.parametrize(
    "text",
    ["1" * 512, "1," * 256, "1,111" * 100, " 1" * 256, "1 a" * 170, "5 " + "ab " * 170, "5" + " " * 500, "5\\text{" * 60, "\\frac{1}" * 60, "+-" * 250,
     "百" * 512, "5 ab/" * 100],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    quantity(text)
    assert time.process_time() - started < 1
