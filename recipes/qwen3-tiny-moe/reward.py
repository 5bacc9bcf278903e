"""The reward of the recipe qwen3-tiny-moe: 1 for exactly the right number, else 0.

verl 0.9.1 loads this file by path and calls ``compute_score`` with keyword arguments for each response, after decoding it
without special tokens. All numbers of the returned dict become metrics.
"""

from __future__ import annotations

from typing import Any

from verl_musa.data.toy.scoring import exact_number

DATA_SOURCE = "qwen3-tiny-moe/addition"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001 - verl passes it
    **kwargs: Any,  # noqa: ARG001 - verl passes reward_kwargs and, with a reward model, its address
) -> dict[str, float]:
    """Return {"score", "acc", "parsed"}, each 0.0 or 1.0.

    Raises ValueError if the data does not belong to this reward: unknown ``data_source``, or a ``ground_truth`` that is
    no number.
    """
    if data_source != DATA_SOURCE:
        raise ValueError(
            f"reward.py: found data_source {data_source!r}, expected {DATA_SOURCE!r}: "
            "use the data of this recipe, or a reward made for that data"
        )
    return exact_number(solution_str, ground_truth)
