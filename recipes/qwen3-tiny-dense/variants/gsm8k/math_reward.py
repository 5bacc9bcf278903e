r"""The reward of the variant gsm8k: 1 for the right answer, else 0, by the rules of the big recipes (verl_musa/reward).

verl 0.9.1 loads this file by path and calls ``compute_score`` with keyword arguments for each response. All numbers of the returned
dict become metrics.
"""

from __future__ import annotations

from typing import Any

from verl_musa.reward import score_math


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001 - verl passes it
    **kwargs: Any,  # noqa: ARG001 - verl passes reward_kwargs and, with a reward model, its address
) -> dict[str, float]:
    """Return {"score", "acc", "parsed", "gave_up"}, each 0.0 or 1.0. Every ``data_source`` is scored by the one rule.

    Raises ValueError if ``ground_truth`` is no text or empty.
    """
    return score_math(solution_str, ground_truth, where=f"math_reward.py: data_source {data_source!r}")
