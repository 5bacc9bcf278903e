r"""The reward of the recipe qwen3-8b-dense: 1 for the right answer to a mathematical question, else 0.

verl 0.9.1 loads this file by path and calls ``compute_score`` with keyword arguments for each response, from a thread of its reward
workers. All numbers of the returned dict become metrics.

The answer is the last ``\boxed{…}``, ``#### …`` line or "the answer is …" / "答案是…" after ``</think>``. It is compared as text, then
as an exact number (units, percentages, fractions, full-width digits), then by math-verify in a process of its own, which the
kernel bounds: an expression that would take all time or memory counts as wrong (metric ``gave_up``). docs/data.md has the rules.
"""

from __future__ import annotations

from typing import Any

from verl_musa.reward import require_math_verify, score_math

require_math_verify()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001 - verl passes it
    **kwargs: Any,  # noqa: ARG001 - verl passes reward_kwargs and, with a reward model, its address
) -> dict[str, float]:
    """Return {"score", "acc", "parsed", "gave_up"}, each 0.0 or 1.0. Every ``data_source`` is scored by the one rule.

    Raises ValueError if ``ground_truth`` is no text or empty: such an error is in the data set, and a silent 0 would hide it.
    """
    return score_math(solution_str, ground_truth, where=f"reward.py: data_source {data_source!r}")
