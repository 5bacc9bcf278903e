from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from verl_musa.data.toy.sums import (
    Problem,
    careless_answer,
    one_digit_wrong,
    split_problems,
    stream,
    write_parquet,
)


def test_splits_are_disjoint_cover_all_problems_and_follow_the_seed() -> None:
    train, val = split_problems(17)
    assert (len(train), len(val)) == (2048, 256)
    assert len({(p.a, p.b) for p in train + val}) == 2304
    assert split_problems(17) == (train, val)
    assert split_problems(18) != (train, val)


def test_streams_of_one_seed_are_separate_and_reproducible() -> None:
    assert stream(1, "a").random() == stream(1, "a").random()
    assert len({stream(1, "a").random(), stream(1, "b").random(), stream(2, "a").random()}) == 3


def test_careless_answers_keep_to_their_rates() -> None:
    rng = random.Random(0)  # noqa: S311
    problem = Problem(17, 25)
    count = Counter(careless_answer(problem, rng, right_rate=0.1, copy_rate=0.3) for _ in range(20_000))
    assert count["42"] / 20_000 == pytest.approx(0.1, abs=0.01)
    assert (count["17"] + count["25"]) / 20_000 == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("a", [1, 9, 48])
def test_a_slip_is_one_digit_and_never_a_leading_zero(a: int) -> None:
    problem, rng = Problem(a, 1), random.Random(0)  # noqa: S311
    for _ in range(500):
        wrong = one_digit_wrong(problem, rng)
        assert len(wrong) == len(problem.answer)
        assert sum(x != y for x, y in zip(wrong, problem.answer, strict=True)) == 1
        assert len(wrong) == 1 or not wrong.startswith("0")


def test_rows_have_verls_form_and_carry_the_question(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", [Problem(2, 3)], data_source="toy", split="val")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": "2 + 3 = ?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "5"},
            "extra_info": {"split": "val", "index": 0, "question": "2 + 3 = ?"},
        }
    ]
