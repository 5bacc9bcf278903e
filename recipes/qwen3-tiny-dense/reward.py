"""The reward of the recipe qwen3-tiny-dense: 1 for exactly the right number, else 0.

verl 0.9.1 loads this file by path and calls ``compute_score`` with keyword arguments for each response, after decoding it
without special tokens. All numbers of the returned dict become metrics: ``score`` is the reward, ``acc`` names the core
validation metric, ``parsed`` tells a wrong answer (1) from one that is no number (0).
"""

from __future__ import annotations

from typing import Any

from verl_musa.data.toy.scoring import exact_number, require_source

DATA_SOURCE = "qwen3-tiny-dense/addition"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001 - verl passes it
    **kwargs: Any,  # noqa: ARG001 - verl passes reward_kwargs and, with a reward model, its address
) -> dict[str, float]:
    """Return {"score", "acc", "parsed"}, each 0.0 or 1.0; any ``solution_str`` is fine.

    Raises ValueError if the data does not belong to this reward: unknown ``data_source``, or a ``ground_truth`` that is
    no number.
    """
    require_source(data_source, DATA_SOURCE)
    return exact_number(solution_str, ground_truth)
