"""The data sets that ``verl-musa data prepare`` knows by name: where they lie and what their columns mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_musa.data.prepare_mapping import Mapping as RowMapping

BOXED = "\nReason step by step, and put the final answer in \\boxed{}."
"""What the prompts ask for, so that a reward can tell the answer from the reasoning."""


@dataclass(frozen=True)
class Repository:
    """A data set on a hub.

    Attributes:
        name: owner/name.
        revision: the commit that is taken where none is named; None: the newest, which is then recorded.
        files: split -> its files there.
    """

    name: str
    revision: str | None
    files: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes:
        name: as on the command line.
        summary: what it is.
        mappings: one for each form in which copies of it are found; the first that fits the columns is taken.
        huggingface: where it lies on the Hugging Face hub.
        modelscope: the same on ModelScope, where a copy is known.
        rows: split -> rows after duplicates are dropped, of that revision.
    """

    name: str
    summary: str
    mappings: tuple[RowMapping, ...]
    huggingface: Repository
    modelscope: Repository | None = None
    rows: dict[str, int] = field(default_factory=dict)


_GSM8K_FILES = {
    "train": ("main/train-00000-of-00001.parquet",),
    "val": ("main/test-00000-of-00001.parquet",),
}
# The instructions around the question ask for a line "Answer: …" and are replaced by ours.
_DAPO_QUESTION = r"(?s)^Solve the following math problem[^\n]*\n\n(.*?)\n\nRemember to put your answer"


def _plain(data_source: str, prompt: str, truth: str) -> RowMapping:
    return RowMapping(prompt=prompt, ground_truth=truth, suffix=BOXED, data_source=data_source)


def _verl(data_source: str) -> RowMapping:
    """Copies that are in verl's layout already."""
    return RowMapping(
        prompt="prompt",
        ground_truth="reward_model.ground_truth",
        question=_DAPO_QUESTION,
        suffix=BOXED,
        data_source=data_source,
    )


SOURCES = {
    source.name: source
    for source in (
        Source(
            "gsm8k",
            "8.5 thousand grade-school word problems (MIT), train and val",
            (
                RowMapping(
                    prompt="question",
                    ground_truth="answer",
                    extract="gsm8k",
                    suffix=BOXED,
                    data_source="openai/gsm8k",
                ),
            ),
            Repository("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", _GSM8K_FILES),
            Repository("AI-ModelScope/gsm8k", None, _GSM8K_FILES),
            rows={"train": 7473, "val": 1319},
        ),
        Source(
            "dapo-math-17k",
            "17 thousand competition problems with whole-number answers (Apache 2.0), train; each stands there a hundred times",
            (_verl("math_dapo"),),
            Repository(
                "BytedTsinghua-SIA/DAPO-Math-17k",
                "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
                {"train": ("data/dapo-math-17k.parquet",)},
            ),
        ),
        Source(
            "aime-2024",
            "the 30 problems of AIME 2024, val",
            (
                _plain("aime_2024", "problem", "answer"),
                _plain("aime_2024", "Problem", "Answer"),
                _verl("aime_2024"),
            ),
            Repository(
                "HuggingFaceH4/aime_2024",
                "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
                {"val": ("data/train-00000-of-00001.parquet",)},
            ),
            rows={"val": 30},
        ),
        Source(
            "aime-2025",
            "the 30 problems of AIME 2025, val",
            (
                _plain("aime_2025", "question", "answer"),
                _plain("aime_2025", "problem", "answer"),
                _verl("aime_2025"),
            ),
            Repository(
                "opencompass/AIME2025",
                "a6ad95f611d72cf628a80b58bd0432ef6638f958",
                {"val": ("aime2025-I.jsonl", "aime2025-II.jsonl")},
            ),
            rows={"val": 30},
        ),
    )
}
