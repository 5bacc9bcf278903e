# ruff: noqa: RUF001 - characters that look alike are what it is about
r"""One written form of an answer: delimiters, spacing commands, bold and full-width characters are gone.

What is left still is LaTeX or plain text; whether two forms mean the same is the business of ``quantity`` and ``symbolic``.
"""

from __future__ import annotations

import re

from verl_musa.reward.answer import widths

_WRAPPED = re.compile(
    r"\$\$(?P<display>.*)\$\$|\$(?P<inline>[^$]*)\$|\\\((?P<round>.*)\\\)|\\\[(?P<square>.*)\\\]"
    r"|\*\*(?P<bold>.*)\*\*|`(?P<code>[^`]*)`"
    r"|\\(?:boxed|fbox|text|textbf|mathbf|mathrm|mbox)\s*\{(?P<command>[^{}]*)\}",
    re.DOTALL,
)
_SPACING = re.compile(r"\\(?:left|right|displaystyle|limits|quad|qquad)(?![A-Za-z])|\\[,;:! ]|~|\{\}")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_LOOKALIKES = {
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ",
    "∅": r"\emptyset ", "±": r"\pm ", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "°": r"^{\circ}",
    "²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "∈": r"\in ",
}  # fmt: skip
_TABLE = str.maketrans(_LOOKALIKES)
_MAX_PEELS = 6


def normal(text: str) -> str:
    """The form of ``text`` in which two answers are compared."""
    form = widths(text).translate(_TABLE).replace("{,}", ",").replace(r"\varnothing", r"\emptyset ")
    form = _FRACTION.sub(r"\\frac", _SPACING.sub(" ", form))
    for _ in range(_MAX_PEELS):
        peeled = _peel(form)
        if peeled == form:
            break
        form = peeled
    return " ".join(form.split())


def _peel(form: str) -> str:
    """``form`` without one layer of delimiters, or of punctuation around it."""
    form = form.strip().strip('"').strip()
    form = re.sub(r"[。.,;:]+$", "", form) if not form.endswith(r"\.") else form
    form = form.lstrip(":").strip()
    match = _WRAPPED.fullmatch(form)
    return next(part for part in match.groups() if part is not None) if match else form


_RIGHT_SIDE = re.compile(r"[A-Za-z](?:_\{?\w{1,8}\}?)?\s*=\s*([^=<>]+)")


def without_name(form: str) -> str:
    """``x = 5`` as ``5``; anything else as it is."""
    match = _RIGHT_SIDE.fullmatch(form)
    return match.group(1).strip() if match else form


_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORDS = re.compile(r"[A-Za-z]{2,}|[\u4e00-\u9fff]")
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "lg", "exp", "sqrt", "pi", "mod", "max", "min", "arcsin", "arccos",
              "arctan", "infty", "inf", "gcd", "lcm", "or", "and"}  # fmt: skip


_LONGEST_PRODUCT = 3
"""Letters in a row that may be variables, as in "abc"; more are a word."""


def is_words(form: str) -> bool:
    r"""Whether ``form`` is language and no formula. A formula parser reads a word as a product of letters, and Tuesday as Duesyat."""
    plain = re.sub(r"\\(?:text|mathrm|textbf|operatorname)\s*\{([^{}]*)\}", r" \1 ", form)
    words = _WORDS.findall(_COMMAND.sub(" ", plain))
    return any(
        word.lower() not in _FUNCTIONS
        and (len(word) > _LONGEST_PRODUCT or not word.isascii() or word.istitle())
        for word in words
    )


def words(form: str) -> str:
    """``form`` as words are compared: without commands for type faces, case and outer parentheses."""
    plain = re.sub(r"\\(?:text|mathrm|textbf|operatorname)\s*\{([^{}]*)\}", r" \1 ", form)
    return " ".join(plain.replace("(", " ").replace(")", " ").casefold().split())
