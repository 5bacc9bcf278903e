# ruff: noqa: RUF001 - full-width forms are what is tested
from __future__ import annotations

import time

import pytest

from verl_musa.reward.answer import MAX_ANSWER, final_answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so \\boxed{42}.", "42"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed {\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\fbox{7}", "7"),
        ("\\boxed{1} no, \\boxed{2}", "2"),
        ("\\boxed{1} no, \\boxed{2", "1"),
        ("She has 5.\n#### 5", "5"),
        ("#### 1,234 \nthat is all", "1,234"),
        ("\\boxed{5}\n#### 6", "6"),
        ("#### 6\n\\boxed{5}", "5"),
        ("Answer: 42", "42"),
        ("The answer is: 42", "42"),
        ("the final answer is $\\sqrt{2}$. I hope so", "\\sqrt{2}"),
        ("The answer is \\(x+1\\) as shown", "x+1"),
        ("**Answer:** 3.5", "3.5"),
        ("Answer:\n12", "12"),
        ("The answer is 12. Then again 13.", "12"),
        ("The answer is 3.14, which is close", "3.14"),
        ("The answer is 1, 2 and 3", "1, 2 and 3"),
        ("The answer is (1, 2).", "(1, 2)"),
        ("First answer is 1. The answer is 2.", "2"),
        ("答案是42。", "42"),
        ("答案：４２", "42"),
        ("最终答案为１，２３４元，谢谢", "1,234元"),
        ("答：5个", "5个"),
        ("故答案為 7", "7"),
        ("<think>\\boxed{1}</think>\\boxed{2}", "2"),
        ("thought\n</think>\n答案是 3", "3"),
    ],
)
def test_found(response: str, answer: str) -> None:
    assert final_answer(response) == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        "42",
        "It is 42.",
        "\\boxed{}",
        "\\boxed{42",
        "\\boxed 42",
        "<think>\\boxed{42}",
        "<think>a</think><think>\\boxed{42}",
        "####",
        "answers vary",
        "答案",
        "\\boxed{" + "1" * (MAX_ANSWER + 1) + "}",
    ],
)
def test_none(response: str) -> None:
    assert final_answer(response) is None


@pytest.mark.parametrize(
    "response",
    [
        "\\boxed{" * 100_000,
        "{" * 500_000 + "\\boxed{42",
        "#### " * 100_000,
        "answer is " * 100_000,
        "答" + " " * 500_000,
        "Answer:" + "*\t" * 250_000,
        "$" * 500_000,
        "the answer is " + "\\(" * 200_000,
    ],
)
def test_no_text_takes_long(response: str) -> None:
    started = time.process_time()
    final_answer(response)
    assert time.process_time() - started < 2
