"""The toy task: the sum of two numbers, the answers of a careless pupil, and verl's parquet form of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ABILITY = "math"

# Operands 1..48 give 48 * 48 = 2304 = 2048 + 256 different problems.
OPERANDS = range(1, 49)
VAL_PROBLEMS = 256


@dataclass(frozen=True)
class Problem:
    """One sum."""

    a: int
    b: int

    @property
    def question(self) -> str:
        """The text of the user's message."""
        return f"{self.a} + {self.b} = ?"

    @property
    def answer(self) -> str:
        """The one right answer."""
        return str(self.a + self.b)


def stream(seed: int, purpose: str) -> random.Random:
    """Return the random numbers for one purpose; separate streams, so that one change doesn't shift all others."""
    return random.Random(f"{seed}/{purpose}")  # noqa: S311 - data, no secrets


def split_problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """Return (train, val): all problems, shuffled by the seed, without overlap."""
    problems = [Problem(a, b) for a in OPERANDS for b in OPERANDS]
    stream(seed, "split").shuffle(problems)
    return problems[VAL_PROBLEMS:], problems[:VAL_PROBLEMS]


def one_digit_wrong(problem: Problem, rng: random.Random) -> str:
    """Return the sum with one digit changed; never a leading zero, which would be malformed rather than wrong."""
    digits = list(problem.answer)
    place = rng.randrange(len(digits))
    choices = [
        d for d in "0123456789" if d != digits[place] and not (d == "0" and place == 0 and len(digits) > 1)
    ]
    digits[place] = rng.choice(choices)
    return "".join(digits)


def careless_answer(problem: Problem, rng: random.Random, *, right_rate: float, copy_rate: float) -> str:
    """Return a careless pupil's answer: right, or one of the operands copied, or the sum with one digit wrong.

    Args:
        problem: the sum.
        rng: where the chances come from.
        right_rate: share of right answers.
        copy_rate: share of copied operands; what is left has one digit wrong.
    """
    draw = rng.random()
    if draw < right_rate:
        return problem.answer
    if draw < right_rate + copy_rate:
        return str(rng.choice((problem.a, problem.b)))
    return one_digit_wrong(problem, rng)


def write_parquet(path: Path, problems: Sequence[Problem], *, data_source: str, split: str) -> None:
    """Write ``problems`` in verl's form: data_source, prompt, ability, reward_model and extra_info.

    extra_info repeats the question: verl hands it to the reward function, and the prompt it does not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = [
        {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": problem.question}],
            "ability": ABILITY,
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"split": split, "index": index, "question": problem.question},
        }
        for index, problem in enumerate(problems)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
