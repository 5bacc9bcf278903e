r"""Plain numbers, exactly: integers, decimals, fractions, percentages and amounts with a unit.

Nearly every answer of GSM8K, DAPO-Math-17k and AIME is one, and is settled here in microseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_INTEGER = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+"
_DECIMAL = rf"(?:{_INTEGER})(?:\.\d+)?|\.\d+"
_NUMBER = (
    rf"(?P<mixed>\d+)\s*\\frac\s*\{{\s*(?P<mixed_top>\d+)\s*\}}\s*\{{\s*(?P<mixed_bottom>\d+)\s*\}}"
    rf"|(?P<plain_mixed>\d+)\s+(?P<plain_top>\d+)\s*/\s*(?P<plain_bottom>\d+)"
    rf"|\\frac\s*\{{\s*(?P<minus>-?)\s*(?P<top>{_DECIMAL})\s*\}}\s*\{{\s*(?P<bottom>{_DECIMAL})\s*\}}"
    rf"|\\frac\s*(?P<digit_top>\d)\s*(?P<digit_bottom>\d)"
    rf"|(?P<left>{_DECIMAL})\s*/\s*(?P<right>{_DECIMAL})"
    rf"|(?P<factor>{_DECIMAL})\s*(?:\\times|\\cdot|\*)\s*10\s*(?:\^|\*\*)\s*(?:\{{\s*(?P<power>[+-]?\d{{1,2}})\s*\}}|(?P<bare_power>[+-]?\d{{1,2}}))"
    rf"|(?P<one>{_DECIMAL})"
)
_CURRENCY = r"(?:\\?\$|€|£|¥|￥|USD|RMB|CNY|US\\?\$)"
_MAGNITUDES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8, "百万": 10**6, "千万": 10**7,
}  # fmt: skip
_MAGNITUDE = "|".join(sorted(_MAGNITUDES, key=len, reverse=True))
# Words that would make another number, or no number, of what stands before them.
_NO_UNIT = r"(?:not|less|more|than|or|and|times|minus|plus|to|per\s+cent|percent|over|squared|cubed|half|dozen|pairs?)\b"
_WORD_UNIT = rf"\s+(?!{_NO_UNIT})[A-Za-z]{{2,}}\.?(?:(?:\s+|/)(?!{_NO_UNIT})[A-Za-z]{{2,}}\.?){{0,2}}"
_JOINED_UNIT = r"(?:mm|cm|dm|km|ml|kg|mg|mph|km/h|m/s|min|hours?|hrs?|days?|dollars?|cents?)"
_POWER = r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?"
_UNIT = (
    rf"(?:\\(?:text|mathrm|mbox|textbf)\s*\{{\s*(?!{_NO_UNIT})[^{{}}\d]*\}}{_POWER}"
    rf"|\^\s*\{{?\s*\\circ\s*\}}?\s*[CF]?|{_WORD_UNIT}{_POWER}|\s*{_JOINED_UNIT}{_POWER}|\s+[mgshlLCFK]"
    # 5百, 5点 and 5分之 go on with the number.
    rf"|\s*(?![点分之])(?:(?![十百千万亿])[\u4e00-\u9fff]){{1,6}}{_POWER})"
)
_QUANTITY = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:{_CURRENCY}\s*(?P<inner_sign>-?))?\s*(?P<of_hundred>百分之)?\s*(?:{_NUMBER})"
    rf"(?:\s*(?P<magnitude>{_MAGNITUDE})(?![A-Za-z]))?"
    rf"(?P<percent>\s*(?:\\?%|percent(?:age)?(?:\s+points?)?|per\s+cent))?"
    rf"(?:\s*{_CURRENCY}|{_UNIT})?\s*",
    re.IGNORECASE,
)

DIGITS = 6
"""Decimals are compared to that many digits, as math-verify does."""


@dataclass(frozen=True)
class Quantity:
    """A number as an answer gives it.

    Attributes:
        value: the number, exactly as written; of ``50%`` it is 50.
        percent: whether a per cent sign stands behind it.
        rounded: whether it is written with a decimal point, and so may stand for a number close by.
    """

    value: Fraction
    percent: bool = False
    rounded: bool = False


def quantity(form: str) -> Quantity | None:
    """The number that ``form`` is, units and currency aside; None where it is anything else."""
    match = _QUANTITY.fullmatch(form)
    if match is None:
        return None
    found = match.groupdict()
    value = _value(found)
    if value is None:
        return None
    if (found["sign"] == "-") != (found["inner_sign"] == "-"):
        value = -value
    if found["magnitude"]:
        value *= _MAGNITUDES[found["magnitude"].lower()]
    written = found["one"] or found["factor"] or ""
    return Quantity(value, bool(found["percent"] or found["of_hundred"]), "." in written)


def _value(found: dict[str, str | None]) -> Fraction | None:
    number = {name: text.replace(",", "").replace(" ", "") for name, text in found.items() if text}
    try:
        for whole, top, bottom in (
            ("mixed", "mixed_top", "mixed_bottom"),
            ("plain_mixed", "plain_top", "plain_bottom"),
        ):
            if whole in number:
                return int(number[whole]) + Fraction(int(number[top]), int(number[bottom]))
        for top, bottom in (("top", "bottom"), ("digit_top", "digit_bottom"), ("left", "right")):
            if top in number:
                ratio = Fraction(number[top]) / Fraction(number[bottom])
                return -ratio if number.get("minus") else ratio
    except ZeroDivisionError:
        return None
    if "factor" in number:
        power = int(number.get("power") or number["bare_power"])
        return Fraction(number["factor"]) * Fraction(10) ** power
    return Fraction(number["one"])


def same(answer: Quantity, truth: Quantity) -> bool:
    """Whether ``answer`` is ``truth``.

    A percentage equals the same percentage, and beside a plain number both readings of it: what is asked in per cent is
    answered with and without the sign.
    """
    pairs = [(answer.value, truth.value)]
    if answer.percent and not truth.percent:
        pairs.append((answer.value / 100, truth.value))
    if truth.percent and not answer.percent:
        pairs.append((answer.value, truth.value / 100))
    # A whole number is meant exactly.
    loose = (answer.rounded or truth.rounded) and truth.value.denominator != 1
    return any(_close(a, b) if loose else a == b for a, b in pairs)


def _close(a: Fraction, b: Fraction) -> bool:
    return abs(a - b) <= abs(b) / 10**DIGITS
