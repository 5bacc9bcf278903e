"""The card of a triage: what happened first, where, why that is believed, and what followed from it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from verl_musa.checks import Status
from verl_musa.diagnose.triage_text import Evidence

SCHEMA = 1
UNKNOWN = "UNKNOWN"
MOST_EVIDENCE = 8
MOST_FOLDED = 8


class Verdict(enum.StrEnum):
    """What a triage came to."""

    FOUND = "FOUND"
    """A first cause that a rule knows."""

    CONSEQUENCE = "CONSEQUENCE"
    """Only consequences: what they follow from is in none of these logs."""

    UNKNOWN = "UNKNOWN"
    """Something is wrong that no rule knows."""

    CLEAN = "CLEAN"
    """Nothing abnormal."""


_STATUS = {
    Verdict.FOUND: Status.FAIL,
    Verdict.CONSEQUENCE: Status.FAIL,
    Verdict.UNKNOWN: Status.UNKNOWN,
    Verdict.CLEAN: Status.OK,
}
_EXIT = {Status.OK: 0, Status.FAIL: 2, Status.UNKNOWN: 3}


@dataclass(frozen=True)
class Folded:
    """Events of one kind that are not the first cause; ``count`` of them."""

    rule: str
    what: str
    count: int
    first: str
    place: str


@dataclass(frozen=True)
class Where:
    """A process; empty where the logs do not say."""

    host: str = ""
    process: str = ""
    pid: str = ""
    rank: str = ""
    text: str = ""


@dataclass(frozen=True)
class Card:
    """What a triage found.

    Attributes:
        verdict: what it came to.
        rule: id of the rule, or ``UNKNOWN``; empty where nothing is wrong.
        layer: which part of the stack the rule is about.
        what: what happened.
        where: on which host, in which process.
        when: time of it in UTC, by the head's clock; empty where the logs have none.
        evidence: the lines that say so.
        chain: the exceptions of the traceback, from the cause on.
        why: why it is believed to be the first cause.
        consequences: what followed, folded.
        others: other causes that came later.
        fix: what to do.
        links: where to read on.
        notes: what was not read, and what was corrected.
        read: files and bytes.
    """

    verdict: Verdict
    rule: str = ""
    layer: str = ""
    what: str = ""
    where: Where = field(default_factory=Where)
    when: str = ""
    evidence: tuple[Evidence, ...] = ()
    chain: tuple[str, ...] = ()
    why: str = ""
    consequences: tuple[Folded, ...] = ()
    others: tuple[Folded, ...] = ()
    fix: str = ""
    links: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: int = 0
    bytes_read: int = 0

    @property
    def exit_code(self) -> int:
        """0: nothing abnormal. 2: something failed. 3: something is wrong that no rule knows."""
        return _EXIT[_STATUS[self.verdict]]

    def to_json(self) -> dict[str, Any]:
        """The card as plain data."""
        return {"schema": SCHEMA, "exit_code": self.exit_code, **asdict(self), "verdict": self.verdict.value}


def time_text(seconds: float | None, *, about: bool = False) -> str:
    """A time in UTC, to the millisecond; empty for none."""
    if seconds is None:
        return ""
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError, OSError):
        return ""
    return f"about {text[:-4]} UTC (time of the file)" if about else f"{text} UTC"


def card_lines(card: Card) -> list[tuple[str, str]]:
    """The card as label and text, a line each; the label is empty in the second and later lines of one."""
    if card.verdict is Verdict.CLEAN:
        lines = [("", f"nothing abnormal found in {_files(card)}")]
        return lines + _labelled("note", card.notes)
    lines = [("what", card.what)]
    if card.rule != UNKNOWN:
        lines[0] = ("what", f"{card.what}  [{card.layer}, {card.rule}]")
    lines.append(("where", card.where.text))
    if card.when:
        lines.append(("when", card.when))
    lines += _labelled("evidence", _evidence(card.evidence))
    if len(card.chain) > 1:
        lines.append(("chain", "  ->  ".join(card.chain)))
    lines.append(("first?", card.why))
    lines += _labelled("then", [_folded(one) for one in card.consequences[:MOST_FOLDED]])
    if len(card.consequences) > MOST_FOLDED:
        lines.append(("", f"and {len(card.consequences) - MOST_FOLDED} other kinds"))
    lines += _labelled("also", [_folded(one) for one in card.others[:MOST_FOLDED]])
    if len(card.others) > MOST_FOLDED:
        lines.append(("", f"and {len(card.others) - MOST_FOLDED} other kinds"))
    lines.append(("fix", card.fix))
    lines += _labelled("read on", card.links)
    lines += _labelled("note", card.notes)
    return [(label, text) for label, text in lines if text]


def _files(card: Card) -> str:
    size = card.bytes_read / 1e6
    return f"{card.files} file{'s' if card.files != 1 else ''} ({size:.1f} MB)"


def _labelled(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(label if index == 0 else "", text) for index, text in enumerate(texts)]


def _evidence(evidence: Sequence[Evidence]) -> list[str]:
    return [f"{one.file}:{one.line}: {line}" for one in evidence for line in one.text.split("\n")]


def _folded(one: Folded) -> str:
    times = f"{one.count} x " if one.count > 1 else ""
    rule = f" [{one.rule}]" if one.rule != UNKNOWN else ""
    return f"{times}{one.what}{rule} ({', '.join(part for part in (one.first, one.place) if part)})"


_TITLES = {
    Verdict.FOUND: ("first cause", "bold red"),
    Verdict.CONSEQUENCE: ("only consequences: the first of them", "bold yellow"),
    Verdict.UNKNOWN: ("UNKNOWN: the earliest abnormal lines", "bold magenta"),
    Verdict.CLEAN: ("triage", "bold green"),
}


def render(card: Card, console: Console) -> None:
    """Print the card. What comes from logs is never taken for markup."""
    title, colour = _TITLES[card.verdict]
    console.print(Text(title, style=colour))
    for label, text in card_lines(card):
        line = Text(f"  {label:<9}", style="bold")
        line.append(text, style="not bold" if label in {"what", "fix"} else "")
        console.print(line, soft_wrap=True, highlight=False)


def markdown(card: Card) -> list[str]:
    """The card as a section of a report; what comes from logs is in a code block that it cannot end."""
    title, _ = _TITLES[card.verdict]
    body = [f"{label:<9}{text}" for label, text in card_lines(card)]
    fence = "`" * max(3, _ticks(body) + 1)
    return ["", "## Triage", "", f"{title[0].upper()}{title[1:]}", "", f"{fence}text", *body, fence]


def _ticks(lines: Sequence[str]) -> int:
    """The longest run of backticks."""
    longest = run = 0
    for char in "\n".join(lines):
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    return longest
