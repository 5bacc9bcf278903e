"""The rule that scores an answer to the toy task: exactly the right number, and nothing else."""

from __future__ import annotations

import re

# A whole number as one writes it: no plus sign, no leading zero, no "-0", ASCII digits only. Blanks around it are
# accepted, anything else is not: prose, a second number or a decimal point makes an answer malformed.
# [0-9] and not \d, which would match digits of every script.
_NUMBER = re.compile(r"[ \t\r\n]*(0|-?[1-9][0-9]*)[ \t\r\n]*")


def parse_answer(text: str) -> str | None:
    """Return the number that ``text`` consists of, as written, or None if it is anything else than one number."""
    match = _NUMBER.fullmatch(text)
    return match.group(1) if match else None


def require_source(data_source: str, expected: str) -> None:
    """Refuse data that a reward was not made for.

    Raises:
        ValueError: it is of another source. A score of 0 would hide that.
    """
    if data_source != expected:
        raise ValueError(
            f"reward.py: found data_source {data_source!r}, expected {expected!r}: "
            "use the data of this recipe, or a reward made for that data"
        )


def exact_number(solution: str, ground_truth: object, *, where: str = "reward.py") -> dict[str, float]:
    """Return {"score", "acc", "parsed"}, each 0.0 or 1.0; any ``solution`` is fine.

    ``score`` is the reward, ``acc`` names verl's core validation metric, ``parsed`` tells a wrong number (1) from none (0).

    Raises:
        ValueError: ``ground_truth`` is no whole number as text. The data set is wrong then, and a 0 would hide it.
    """
    truth = parse_answer(ground_truth) if isinstance(ground_truth, str) else None
    if truth is None:
        raise ValueError(
            f"{where}: found ground_truth {ground_truth!r}, expected a whole number as text, like '42': "
            "check reward_model.ground_truth in the parquet file"
        )
    answer = parse_answer(solution)
    right = float(answer == truth)
    return {"score": right, "acc": right, "parsed": float(answer is not None)}
