r"""The reward of mathematics by rule: 1 for the right answer, else 0.

In this order, and the first that can tell decides: equal text, exact numbers, words, math-verify.
"""

from __future__ import annotations

import functools
import importlib.util
import re

from verl_musa.reward.answer import final_answer
from verl_musa.reward.form import is_words, normal, without_name, words
from verl_musa.reward.quantity import quantity, same
from verl_musa.reward.symbolic import NotInstalledError, shared, worth_asking

_KEPT_COMPARISONS = 1 << 14
_OPTION = re.compile(r"\(?[A-Z]\)?")
# One pair of brackets and no other inside: a union of intervals also begins and ends with one.
_BRACKETED = re.compile(r"([(\[])([^()\[\]]*,[^()\[\]]*)([)\]])")


def require_math_verify() -> None:
    """Say that math-verify is missing when the reward is loaded, and not in the middle of a step.

    Raises:
        NotInstalledError: it is.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise NotInstalledError(
            "this reward needs math-verify: install what images/sim/requirements-train.txt pins, or `verl-musa[math]`"
        )


def score_math(response: str, ground_truth: object, *, where: str = "reward.py") -> dict[str, float]:
    r"""Return {"score", "acc", "parsed", "gave_up"}, each 0.0 or 1.0; any ``response`` is fine.

    ``score`` is the reward and ``acc`` names verl's core validation metric. ``parsed`` tells a wrong answer (1) from none (0),
    ``gave_up`` a comparison that its limits ended (and that counts as wrong).

    Args:
        response: the model's words; the answer in it is the last ``\boxed{…}``, ``#### …`` or "the answer is …".
        ground_truth: the right answer, as text: LaTeX or plain.
        where: the file that is to blame in errors.

    Raises:
        ValueError: ``ground_truth`` is no text, or empty. The data set is wrong then, and a 0 would hide it.
    """
    truth = normal(ground_truth) if isinstance(ground_truth, str) else ""
    if not truth:
        raise ValueError(
            f"{where}: found ground_truth {ground_truth!r}, expected the answer as text, like '42' or '\\\\frac{{1}}{{2}}': "
            "check reward_model.ground_truth in the parquet file (verl-musa data check)"
        )
    answer = final_answer(response)
    if answer is None:
        return {"score": 0.0, "acc": 0.0, "parsed": 0.0, "gave_up": 0.0}
    verdict = equal(normal(answer), truth)
    right = float(verdict is True)
    return {"score": right, "acc": right, "parsed": 1.0, "gave_up": float(verdict is None)}


@functools.lru_cache(maxsize=_KEPT_COMPARISONS)
def equal(answer: str, truth: str) -> bool | None:
    """Whether two normal forms mean the same; None where the limits ended the comparison. Kept: samples of one prompt repeat."""
    if answer == truth:
        return True
    if "=" not in truth:
        answer = without_name(answer)
    given, wanted = quantity(answer), quantity(truth)
    if given is not None and wanted is not None:
        return same(given, wanted)
    if is_words(truth) or is_words(answer) or (_OPTION.fullmatch(truth) and _OPTION.fullmatch(answer)):
        return words(answer) == words(truth)
    if not _brackets_agree(answer, truth) or not worth_asking(answer) or not worth_asking(truth):
        return False
    return shared().equal(truth, answer)


def _brackets_agree(answer: str, truth: str) -> bool:
    """Whether pairs, tuples and intervals are written with the same brackets: math-verify also takes the bare list, in any order."""
    wanted, given = _BRACKETED.fullmatch(truth), _BRACKETED.fullmatch(answer)
    if wanted is None:
        return True
    if given is not None:
        return (given[1], given[3]) == (wanted[1], wanted[3])
    return "," not in answer  # a name or another notation of it: for math-verify to say
