r"""Where the answer stands in a response: the last ``\boxed{…}`` or ``####`` line, else the last "the answer is …" or “答案是…”.

Nothing else counts. A reward that takes any last number pays for guessing, and a policy finds that out.
"""

from __future__ import annotations

import re

THINK_START, THINK_END = "<think>", "</think>"

PHRASE_WINDOW = 2000
"""Characters at the end of a response in which the phrases are looked for."""

MAX_ANSWER = 512
"""Longest answer, in characters; a longer one is none."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# "#### 42": GSM8K's own mark. The answer is the rest of the line.
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
_PHRASE = re.compile(
    r"(?:\banswer\s*(?:is|are|=|:)\s*:?"
    r"|答\s*案?\s*(?:是|为|為|等于|應為|应为|[:=])\s*:?"
    r"|\banswer\b\*{1,2}\s*:?)"
    r"[ \t*]*\n?[ \t]*(?=[^\n])",
    re.IGNORECASE,
)
_DELIMITED = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
# The end of the sentence: a stop or semicolon, or a comma before words; not what is part of a number or a pair.
_SENTENCE_END = re.compile(r"[。;?]|\.(?=\s|$)|,(?=\s+[A-Za-z]{2}|\s*[\u4e00-\u9fff])")
_TRIED_BOXES = 8
"""Boxes that are tried, from the last one backwards: one that is cut off may follow a whole one."""


def final_answer(response: str) -> str | None:
    """The text that the response gives as its answer; None where it gives none.

    A response with an open ``<think>`` was cut while it thought: what stands there is no answer.
    """
    said = response.rpartition(THINK_END)[2]
    if THINK_START in said:
        return None
    said = widths(said)
    box, hashes = _last_box(said), _last_hashes(said)
    if box is not None or hashes is not None:
        found = max(filter(None, (box, hashes)), key=lambda one: one[0])[1]
    else:
        found = _last_phrase(said[-PHRASE_WINDOW:]) or ""
    found = found.strip()
    return found if found and len(found) <= MAX_ANSWER else None


def widths(text: str) -> str:
    """Full-width forms of ASCII as ASCII, and the marks that Chinese text has in their place."""
    return text.translate(_WIDTHS)


_WIDTHS = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    0x3000: " ",
    0x00A0: " ",
    0x202F: " ",
    0x2009: " ",
    0xFF0E: ".",
    0x3002: "。",  # kept: it ends a sentence and is never part of a number
    0x3001: ",",
    0xFFE5: "¥",
    0x2212: "-",
    0x2013: "-",
    0xFE63: "-",
    0x2236: ":",
    0x201C: '"',
    0x201D: '"',
    0xFEFF: None,
    0x200B: None,
}


def _last_box(text: str) -> tuple[int, str] | None:
    r"""Place and content of the last ``\boxed{…}`` whose braces close."""
    for match in reversed(list(_BOX.finditer(text))[-_TRIED_BOXES:]):
        end = _closing(text, match.end())
        if end is not None:
            return match.start(), text[match.end() : end]
    return None


def _closing(text: str, start: int) -> int | None:
    """Where the brace that was opened before ``start`` closes, if it does soon enough for an answer."""
    depth = 1
    for place in range(start, min(len(text), start + 4 * MAX_ANSWER)):
        if text[place] in "{}" and text[place - 1] != "\\":
            depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return place
    return None


def last_box(text: str) -> str | None:
    r"""Content of the last ``\boxed{…}`` in ``text``; None where there is none."""
    found = _last_box(text)
    return None if found is None else found[1]


def _last_hashes(text: str) -> tuple[int, str] | None:
    matches = list(_HASHES.finditer(text))
    return (matches[-1].start(), matches[-1].group(1)) if matches else None


def _last_phrase(text: str) -> str | None:
    matches = list(_PHRASE.finditer(text))
    if not matches:
        return None
    rest = text[matches[-1].end() :].partition("\n")[0].strip().strip("*").strip()
    if rest[:1] in {"$", "\\"}:
        delimited = _DELIMITED.match(rest)
        if delimited:
            return next(part for part in delimited.groups() if part)
    return _SENTENCE_END.split(rest, maxsplit=1)[0]
