r"""The reward of the variant gsm8k: 1 for the right answer, else 0, by the rules of the big recipes (verl_musa/reward).

verl 0.9.1 loads this file by path and calls ``compute_score`` with keyword arguments for each response. All numbers of the returned
dict become metrics.
"""

from __future__ import annotations

from typing import Any

from verl_musa.reward import score_math

DATA_SOURCE = "openai/gsm8k"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001 - verl passes it
    **kwargs: Any,  # noqa: ARG001 - verl passes reward_kwargs and, with a reward model, its address
) -> dict[str, float]:
    """Return {"score", "acc", "parsed", "gave_up"}, each 0.0 or 1.0.

    Raises ValueError if the data does not belong to this reward: unknown ``data_source``, or a ``ground_truth`` that is
    no text.
    """
    if data_source != DATA_SOURCE:
        raise ValueError(
            f"math_reward.py: found data_source {data_source!r}, expected {DATA_SOURCE!r}: "
            "prepare the data with `verl-musa data prepare gsm8k`"
        )
    return score_math(solution_str, ground_truth, where="math_reward.py")
