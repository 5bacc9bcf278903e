# ruff: noqa: RUF001 - full-width forms are part of what is tested
"""What the reward says about an answer, and what it does about one that is meant to hurt it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_musa.reward import math_score, score_math
from verl_musa.reward.symbolic import Comparer, NotInstalledError, worth_asking


@pytest.fixture(scope="module")
def pool() -> Iterator[Comparer]:
    """One process that may use two seconds, so that a test of its end is short."""
    made = Comparer(processes=1, cpu_seconds=2, memory_bytes=1 << 30)
    yield made
    made.close()


@pytest.fixture
def comparer(pool: Comparer, monkeypatch: pytest.MonkeyPatch) -> Comparer:
    monkeypatch.setattr(math_score, "shared", lambda: pool)
    math_score.equal.cache_clear()
    return pool


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("\\sqrt{12}", "2\\sqrt{3}", True),
        ("(x+1)^2", "x^2+2x+1", True),
        ("\\{2,1\\}", "\\{1,2\\}", True),
        ("2, 1", "1, 2", True),
        ("(2,1)", "(1,2)", False),
        ("1,2", "(1,2)", False),
        ("[1,2]", "(1,2)", False),
        ("y=1+2x", "y=2x+1", True),
        ("2x+1", "y=2x+1", True),
        ("\\pi", "π", True),
        ("3.14", "\\pi", False),
        ("1 2", "3", False),
        ("3+2i", "2i+3", True),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", True),
        ("\\begin{pmatrix}2/2\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", True),
        ("\\begin{pmatrix}2\\\\1\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", False),
        ("\\frac{1}{0}", "7", False),
        ("}{", "7x", False),
        ("\\frac{", "7x", False),
    ],
)
def test_formulas(answer: str, truth: str, right: bool, comparer: Comparer) -> None:
    result = score_math(
        f"\\boxed{{{answer}}}" if answer.count("{") == answer.count("}") else f"#### {answer}", truth
    )
    assert (result["score"], result["gave_up"]) == (float(right), 0.0)
    assert comparer


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("Tuesday", "tuesday", True),
        ("\\text{(B)}", "B", True),
        ("dayTues", "Tuesday", False),
        ("星期二", "星期二", True),
        ("星期三", "星期二", False),
        ("yes", "no", False),
    ],
)
def test_words_are_compared_as_words(answer: str, truth: str, right: bool) -> None:
    assert score_math(f"\\boxed{{{answer}}}", truth)["score"] == float(right)


HOSTILE = (
    "9^{9^{9}}", "9**9**9", "9^(9^9)", "10^{100000}", "10^{1000000000}", "99999!", "9!!!!", "(" * 1000 + "42" + ")" * 1000, "\\frac{" * 300 + "1" + "}{2}" * 300,
    "x" * 400, "1+" * 255 + "1", "__import__('os').system('touch HACKED')", "eval('1')", "\\sqrt" * 100 + "{2}",
)  # fmt: skip


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda text: text[:24])
def test_what_looks_hostile_is_not_even_parsed(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def never() -> Comparer:
        raise AssertionError("asked a formula parser")

    monkeypatch.setattr(math_score, "shared", never)
    math_score.equal.cache_clear()
    started = time.process_time()
    assert score_math(f"\\boxed{{{answer}}}", "42")["score"] == 0
    assert time.process_time() - started < 1
    assert list(tmp_path.iterdir()) == []


SLOW = ("(x+1)^{9999}", "\\binom{1000000000}{100000000}")


def test_what_takes_long_is_ended_and_the_next_one_answered(comparer: Comparer) -> None:
    comparer.close()
    before = comparing()
    results = [score_math(f"\\boxed{{{answer}}}", "42") for answer in SLOW]
    assert [result["score"] for result in results] == [0.0] * len(SLOW)
    assert sum(result["gave_up"] for result in results) >= 1
    assert score_math("\\boxed{\\sqrt{4}}", "2")["score"] == 1
    comparer.close()
    assert comparing() == before


def test_memory_is_bounded() -> None:
    pool = Comparer(processes=1, cpu_seconds=4, memory_bytes=400 << 20)
    try:
        assert pool.equal("42", "2^{9999999999}") is not True
        assert pool.equal("2", "\\sqrt{4}") is True
    finally:
        pool.close()


def test_half_a_surrogate_pair_reaches_the_library_and_is_wrong(comparer: Comparer) -> None:
    assert comparer.equal("x^2", "x^2 \ud83d") in {False, None}
    assert comparer.equal("2", "\\sqrt{4}") is True


def test_a_verdict_is_kept_for_the_same_pair(comparer: Comparer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert score_math("\\boxed{\\sqrt{4}}", "2")["score"] == 1

    def never(*_: str) -> bool:
        raise AssertionError("asked again")

    monkeypatch.setattr(comparer, "equal", never)
    assert score_math("so $\\boxed{\\sqrt{4}}$", "2")["score"] == 1


def test_threads_and_event_loops_may_call_it(comparer: Comparer) -> None:
    """verl calls it in the executor of an event loop; signals would need the main thread."""
    names: set[str] = set()

    def call(number: int) -> float:
        names.add(threading.current_thread().name)
        return score_math(f"\\boxed{{\\sqrt{{{number * number}}}}}", str(number))["score"]

    async def many() -> list[float]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(4) as threads:
            return await asyncio.gather(
                *(loop.run_in_executor(threads, call, number) for number in range(2, 10))
            )

    assert asyncio.run(many()) == [1.0] * 8
    assert threading.main_thread().name not in names
    assert comparer


def comparing() -> set[int]:
    """The comparing processes that this one has."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if "_symbolic_child.py" in " ".join(child.cmdline())}


def test_its_processes_end_with_it() -> None:
    before = comparing()
    pool = Comparer(processes=1)
    assert pool.equal("2", "\\sqrt{4}") is True
    assert len(comparing() - before) == 1
    pool.close()
    assert comparing() == before


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotInstalledError, match="install what images/sim/requirements-train"):
        math_score.require_math_verify()
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError('No module named math_verify')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    pool = Comparer(processes=1)
    with pytest.raises(NotInstalledError, match="math-verify is not installed"):
        pool.equal("x", "y")


PIECES = ("\\boxed{", "}", "#### ", "答案是", "the answer is ", "<think>", "</think>", "\\frac{1}{2}", "$", "1,234", "\ud83d", "\0", "％", "^", "!", "\n", " ", "(", "]", "=", "x", "42")  # fmt: skip


@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=24),
    st.sampled_from(["42", "\\frac{1}{2}", "x=1", "(1,2]", "是"]),
)
def test_any_response_and_any_answer_get_a_score(pieces: list[str], truth: str) -> None:
    class Never:
        def equal(self, *_: str) -> bool:
            return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(math_score, "shared", Never)
        math_score.equal.cache_clear()
        for response in ("".join(pieces), "\\boxed{" + "".join(pieces) + "}"):
            result = score_math(response, truth)
            assert set(result) == {"score", "acc", "parsed", "gave_up"}
            assert set(result.values()) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("form", "worth"),
    [
        ("x^{2}", True),
        ("2^{1234}", True),
        ("2^{12345}", False),
        ("x^{y^{2}}", False),
        ("", False),
        ("(" * 13 + ")" * 13, False),
        ("12!", True),
        ("1234!", False),
        ("1 2", False),
        ("a" * 257, False),
    ],
)
def test_what_a_parser_may_see(form: str, worth: bool) -> None:
    assert worth_asking(form) is worth
