"""The reward of the recipe qwen3-tiny-dense: 1 for exactly the right number, else 0.

verl 0.9.1 loads this file by path and calls ``compute_score`` with keyword arguments for each response, after decoding it
without special tokens. All numbers of the returned dict become metrics: ``score`` is the reward, ``acc`` names the core
validation metric, ``parsed`` tells a wrong answer (1) from one that is no number (0).
"""

from __future__ import annotations

import re
from typing import Any

DATA_SOURCE = "qwen3-tiny-dense/addition"

# A whole number as one writes it: no plus sign, no leading zero, no "-0", ASCII digits only. Blanks around it are
# accepted, anything else is not: prose, a second number or a decimal point makes an answer malformed.
# [0-9] and not \d, which would match digits of every script.
_NUMBER = re.compile(r"[ \t\r\n]*(0|-?[1-9][0-9]*)[ \t\r\n]*")


def parse_answer(text: str) -> str | None:
    """Return the number that ``text`` consists of, as written, or None if it is anything else than one number."""
    match = _NUMBER.fullmatch(text)
    return match.group(1) if match else None


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001 - verl passes it
    **kwargs: Any,  # noqa: ARG001 - verl passes reward_kwargs and, with a reward model, its address
) -> dict[str, float]:
    """Return {"score", "acc", "parsed"}, each 0.0 or 1.0.

    Any ``solution_str`` is fine. ``extra_info`` and ``kwargs`` are part of verl's calling convention and not used.
    Raises ValueError if the data does not belong to this reward: unknown ``data_source``, or a ``ground_truth`` that is
    no number. Such an error is in the data set, and a silent 0 would hide it.
    """
    if data_source != DATA_SOURCE:
        raise ValueError(
            f"reward.py: found data_source {data_source!r}, expected {DATA_SOURCE!r}: "
            "use the data of this recipe, or a reward made for that data"
        )
    truth = parse_answer(ground_truth) if isinstance(ground_truth, str) else None
    if truth is None:
        raise ValueError(
            f"reward.py: found ground_truth {ground_truth!r}, expected a whole number as text, like '42': "
            "check reward_model.ground_truth in the parquet file"
        )
    answer = parse_answer(solution_str)
    right = float(answer == truth)
    return {"score": right, "acc": right, "parsed": float(answer is not None)}
