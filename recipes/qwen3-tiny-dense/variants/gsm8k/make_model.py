r"""Make the model of the recipe qwen3-tiny-dense with the variant gsm8k: the tiny Qwen3, for prompts of up to 1,000 tokens.

    python make_model.py --out DIR --seed N

writes ``DIR/model`` (safetensors, config, tokenizer) and ``DIR/manifest.json``. Everything is made here from the seed; the data is
the user's own, from ``verl-musa data prepare gsm8k``.

The model is taught one thing, to say ``\boxed{n}`` with some small number at the end of a word problem. It cannot do the sum. Some
answers of GSM8K are the numbers that it likes, so that now and then it is right, and a reward that never pays would show.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_musa.data.sources import BOXED
from verl_musa.data.toy import models, publish, sums

RECIPE = "qwen3-tiny-dense"
POSITIONS = 1024
PROBLEMS = 512
STEPS = 250
MOST = 60
"""The largest number that it says."""

_WHO = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
_WHAT = ("apples", "books", "eggs", "dollars", "pages", "miles", "hours", "students", "boxes", "flowers")
_SENTENCES = (
    "{who} has {a} {what} and buys {b} more every day.",
    "Each of the {a} friends of {who} gives away {b} {what} in a week.",
    "There are {a} times as many {what} in the first room as in the second one.",
    "If {who} spends half of the money on {what}, how much is left for the other {b} days?",
    "After that, the price of {what} goes up by {a}% and {who} sells {b} of them.",
    "It takes {who} {a} minutes to count {b} {what}, and twice as long to pack them.",
)
_QUESTIONS = ("How many {what} does {who} have in total?", "How much does {who} pay altogether?")


@dataclass(frozen=True)
class WordProblem(sums.Problem):
    """Some sentences with numbers, and a number that nobody worked out."""

    text: str
    said: int

    @property
    def question(self) -> str:
        """The text of the user's message, in the form that the prepared data has."""
        return f"{self.text}{BOXED}"

    @property
    def answer(self) -> str:
        """What the model is taught to say."""
        return f"\\boxed{{{self.said}}}"


def word_problems(seed: int) -> list[WordProblem]:
    """Return problems of one to eight sentences, so that the model meets short and long prompts."""
    rng = sums.stream(seed, "word problems")
    numbers = range(1, MOST + 1)
    # Small numbers are frequent answers, roughly in inverse proportion to their size.
    said = rng.choices(numbers, weights=[1 / number for number in numbers], k=PROBLEMS)
    return [WordProblem(1, 1, _text(rng), number) for number in said]


def _text(rng: random.Random) -> str:
    templates = [*rng.choices(_SENTENCES, k=rng.randrange(1, 9)), rng.choice(_QUESTIONS)]
    return " ".join(
        template.format(
            who=rng.choice(_WHO), what=rng.choice(_WHAT), a=rng.randrange(2, 100), b=rng.randrange(2, 100)
        )
        for template in templates
    )


def make_assets(work: Path, seed: int, steps: int | None = None) -> None:
    """Make all assets in ``work``; in ``steps`` steps, for tests."""
    plan = models.Pretraining(skill_steps=steps or STEPS, batch_size=16, skill_lr=5e-3)
    problems = word_problems(seed)
    tokenizer = models.build_tokenizer(problem.question for problem in problems)
    tokenizer.model_max_length = POSITIONS
    model: Any = models.build_policy(tokenizer, seed)
    model.config.max_position_embeddings = POSITIONS
    rng = sums.stream(seed, "form")
    models.train_phase(model, tokenizer, problems, plan, name="skill", steps=plan.skill_steps, rng=rng)
    models.save(model, tokenizer, work / "model")
    publish.write_manifest(work, RECIPE, seed, {"variant": "gsm8k", "pretraining": asdict(plan)})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return publish.run_script(RECIPE, argv, make_assets)


if __name__ == "__main__":
    sys.exit(main())
