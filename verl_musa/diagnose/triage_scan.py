"""One file to its events: what a rule knows, and what looks wrong to anybody.

A file is searched, block by block, for the plain texts that rules and errors have in them; only the lines around those are looked at,
so that a gigabyte of ordinary lines costs a search and nothing more. What is kept has a bound.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import re2

from verl_musa.diagnose.triage_read import Block, UnreadableError, blocks, open_log
from verl_musa.diagnose.triage_rules import Rule, Rules, values
from verl_musa.diagnose.triage_sources import Source
from verl_musa.diagnose.triage_text import (
    Evidence,
    Line,
    Stamp,
    Who,
    find_stamp,
    shown,
    shown_lines,
    split_prefixes,
)
from verl_musa.diagnose.triage_trace import HEADER, Fed, Raised, Trace, raised_by

MOST_EVENTS = 400
MOST_OPEN = 64
MOST_ANCHORS = 4
MOST_EVIDENCE = 5
WINDOW = 2000
"""Bytes on either side of a hit that a line is looked at; more of a line is not."""

LOOK_BACK = 16_384
STAMP_WITHIN = 200
FIRST_STAMP_LINES = 50

_ABNORMAL = (
    HEADER, "Error", "Exception", "ERROR", "CRITICAL", "FATAL", "Fatal", "terminate called", "Segmentation fault", "core dumped",
    "Killed", "Aborted", ":actor_name:", "ray::",
)  # fmt: skip
_ABNORMAL_PATTERNS = (r" [CEF] \d+ \d+\]", r"^\[?[EF]\d{4} \d\d:", r"\bERR\b")
_LEVEL = re.compile(r"(?<![\w.])(CRITICAL|FATAL|ERROR|ERR)\b(?![\w.=])")
_LEVEL_WITHIN = 100
_CPP_LEVEL = re.compile(r"^\[[^\]\n]{10,40} ([CEF]) \d+ \d+\]|^\[?([EF])\d{4} \d\d:")
_CPP_INFO = re.compile(r"^\[[^\]\n]{10,40} I \d+ \d+\]")
_CRASH = re.compile(
    r"terminate called after|Fatal Python error|Segmentation fault|core dumped|^(?:.{0,80}\s)?Killed\s*$|^Aborted\s*$"
)
_DIGITS = re.compile(r"\d[0-9a-f]*")


@dataclass(slots=True)
class Event:
    """Something that a log tells.

    ``strong``: of what no rule knows, an exception or a crash, not a line at level ERROR.
    """

    rule: Rule | None
    text: str
    line: int
    stamp: Stamp | None
    who: Who
    evidence: list[Evidence]
    values: dict[str, str] = field(default_factory=dict)
    chain: list[str] = field(default_factory=list)
    strong: bool = True
    count: int = 1
    source: int = 0
    file: str = ""
    until: Stamp | None = None
    """The next time in the file, where the line itself has none and ``stamp`` is that of a line before."""

    carried: bool = False
    """Whether ``stamp`` is that of a line before."""

    clock: str = ""
    """The host by whose clock ``stamp`` was written, as far as is known."""

    when: float | None = None
    """In UTC, by the head's clock; the latest that it can be, where the line itself has no time."""

    since: float | None = None
    """The earliest that it can be, where the line itself has no time."""

    about: bool = False
    """Whether ``when`` is the time of the file, as no line of it has any."""


@dataclass
class Found:
    """What one source holds; ``trouble``: why it was not read, or not to its end."""

    source: Source
    events: list[Event] = field(default_factory=list)
    first: Stamp | None = None
    process: str = ""
    read: int = 0
    trouble: str = ""


class Searcher:
    """The rules, and the one search that finds every line worth a look."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        texts = [(text, False) for text in _ABNORMAL] + rules.literals()
        alternatives = [
            f"(?i:{re2.escape(text)})" if any_case else re2.escape(text)
            for text, any_case in dict.fromkeys(texts)
        ]
        options = re2.Options()
        options.max_mem = 32 << 20
        options.encoding = re2.Options.Encoding.LATIN1
        pattern = "(?m)" + "|".join([*alternatives, *_ABNORMAL_PATTERNS])
        self.interesting: Any = re2.compile(pattern.encode(), options)


@dataclass
class _Anchor:
    line: int
    text: str
    values: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Spot:
    """A place in the source; ``searched``: what rules look at, where that is more than the text."""

    line: int
    text: str
    stamp: Stamp | None
    who: Who
    evidence: list[tuple[int, str]] = field(default_factory=list)
    searched: str = ""

    @classmethod
    def of(cls, raised: Raised, trace: Trace) -> _Spot:
        """One exception of a traceback, with the last frame and what the traceback began with."""
        lines = {trace.line: trace.head} | dict(raised.frames[-2:]) | {raised.line: raised.text}
        if trace.head.strip().startswith(HEADER):
            del lines[trace.line]  # says nothing that the others do not
        return cls(raised.line, raised.text, trace.stamp, raised.who, sorted(lines.items()), raised.searched)


class _Wrong(enum.Enum):
    BROKEN = 2
    """An exception or a crash."""

    ERROR = 1
    """A line at level ERROR or above."""


class Scan:
    """Reads one source.

    Args:
        searcher: the rules.
        source: what to read.
        year: seconds since the epoch that give the year to time stamps without one.
        late: says whether to stop, asked once a block.
    """

    def __init__(
        self, searcher: Searcher, source: Source, *, year: float | None, late: Callable[[], bool]
    ) -> None:
        self._searcher = searcher
        self._rules = searcher.rules
        self._late = late
        self.found = Found(source)
        self._stamp: Stamp | None = None
        self._year = source.written or year
        self._traces: dict[tuple[str, str], Trace] = {}
        self._events: dict[tuple[str, ...], Event] = {}
        self._seen: dict[str, _Anchor] = {}  # pattern of `also` or `unless` -> where it was first
        self._compound: dict[str, list[Event]] = {}
        self._undated: list[Event] = []
        self._unfinished: Event | None = None  # its evidence goes on in the next lines

    def run(self) -> Found:
        """Read it to its end, or to where that stops being possible."""
        source = self.found.source
        if source.path is None:
            for number, text, stamp in source.lines:
                self._note_stamp(stamp, number)
                self._line(number, shown(text, 2 * WINDOW))
            return self._finish()
        try:
            with open_log(source.path) as stream:
                for block in blocks(stream):
                    self._block(block)
                    self.found.read = block.offset + len(block.data)
                    if self._late():
                        self.found.trouble = (
                            f"not read to its end for lack of time, only up to line {block.line}"
                        )
                        break
        except UnreadableError as error:
            self.found.trouble = str(error)
        return self._finish()

    # -- lines ----------------------------------------------------------------------------------------------------------------

    def _block(self, block: Block) -> None:
        data, position, line, checked = block.data, 0, block.line, 0
        if block.offset == 0:
            self._first_stamp(data)
        search = self._searcher.interesting.search
        while position < len(data):
            if not self._traces:
                hit = search(data, position)
                if hit is None:
                    break
                start = data.rfind(b"\n", position, hit.start()) + 1 or position
                middle = hit.start()
            else:
                start = middle = position
            line += data.count(b"\n", position, start)
            end = data.find(b"\n", middle)
            end = len(data) if end < 0 else end
            if checked < start:
                self._look_back(data, max(checked, start - LOOK_BACK), start)
            checked = end + 1
            low = max(start, middle - WINDOW)
            head = None if low == start else shown(data[start : start + STAMP_WITHIN])
            self._line(line, shown(data[low : min(end, middle + WINDOW)], 2 * WINDOW), head)
            if self._unfinished is not None:
                self._following(data, end + 1, line + 1)
            # The rest of a line longer than the window is searched too, for there may be another hit in it.
            position = (
                min(end + 1, middle + WINDOW) if not self._traces and end > middle + WINDOW else end + 1
            )
            line += 1 if position == end + 1 else 0
        self._look_back(data, max(checked, len(data) - LOOK_BACK), len(data))

    def _following(self, data: bytes, start: int, number: int) -> None:
        """Add the lines after one to its evidence."""
        event, self._unfinished = self._unfinished, None
        if event is None or event.rule is None:
            return
        lines = data[start : start + LOOK_BACK].split(b"\n", event.rule.following)[: event.rule.following]
        for raw in lines:
            if raw.strip():
                text = split_prefixes(shown(raw)).text
                event.evidence.append(Evidence(self.found.source.name, number, text))
            number += 1

    def _first_stamp(self, data: bytes) -> None:
        for raw in data[:LOOK_BACK].split(b"\n", FIRST_STAMP_LINES)[:FIRST_STAMP_LINES]:
            stamp = find_stamp(split_prefixes(shown(raw[:STAMP_WITHIN])).text, self._year)
            if stamp is not None:
                self.found.first = stamp
                return

    def _look_back(self, data: bytes, start: int, end: int) -> None:
        """Take over the last time stamp between two places of a block, where there is one."""
        while end > start:
            begin = data.rfind(b"\n", start, end - 1) + 1 or start
            raw = data[begin : min(end, begin + STAMP_WITHIN)]
            if b":" in raw and (stamp := find_stamp(split_prefixes(shown(raw)).text, self._before())):
                self._note_stamp(stamp)
                return
            end = begin

    def _before(self) -> float | None:
        return self._stamp.seconds if self._stamp else self._year

    def _note_stamp(self, stamp: Stamp | None, line: int = 0) -> None:
        if stamp is None:
            return
        self._stamp = Stamp(stamp.seconds, stamp.zone, line)
        self.found.first = self.found.first or stamp
        for event in self._undated:
            if event.stamp is None or stamp.seconds >= event.stamp.seconds:
                event.until = stamp
        self._undated.clear()

    def _line(self, number: int, text: str, head: str | None = None) -> None:
        line = split_prefixes(text)
        if line.text.startswith(":actor_name:"):
            self.found.process = line.text[12:].strip()[:100]
            return
        key = (line.who.pid, line.who.process)
        if (trace := self._traces.get(key)) is not None:
            fed = trace.feed(number, line.text)
            if fed is Fed.TAKEN:
                return
            if fed is Fed.ENDED:
                del self._traces[key]
                self._trace(trace)
        start = line.text if head is None else split_prefixes(head).text
        self._note_stamp(find_stamp(start, self._before()), number)
        opened = Trace.opened_by(number, line.text, line.who, self._stamp)
        if opened is not None:
            self._open(key, opened)
        self._single(number, line, opens=opened is not None)

    def _open(self, key: tuple[str, str], trace: Trace) -> None:
        if len(self._traces) >= MOST_OPEN:
            oldest = next(iter(self._traces))
            self._trace(self._traces.pop(oldest))
        self._traces[key] = trace

    # -- events ---------------------------------------------------------------------------------------------------------------

    def _single(self, number: int, line: Line, *, opens: bool) -> None:
        """A line that stands for itself."""
        spot = _Spot(number, line.text, self._stamp, line.who)
        rule, pattern = self._match(spot)
        if rule is not None and rule.kind == "consequence" and _CPP_INFO.match(line.text):
            return  # what Ray's own processes note in passing, at any healthy end too
        if rule is not None:
            self._add(rule, spot, values(pattern, line.text), count=line.repeated)
        elif not opens and (wrong := _looks_wrong(line.text)):
            self._add(None, spot, {}, strong=wrong is _Wrong.BROKEN, count=line.repeated)

    def _match(self, spot: _Spot) -> tuple[Rule | None, str]:
        """The best simple rule for a text; what rules about the whole file need is noted."""
        best: tuple[Rule | None, str] = (None, "")
        text = spot.searched or spot.text
        for rule, role, pattern in self._rules.matches(text):
            if role != "match":
                self._seen.setdefault(pattern, _Anchor(spot.line, spot.text, values(pattern, text)))
            elif rule.compound:
                anchors = self._compound.setdefault(rule.id, [])
                if len(anchors) < MOST_ANCHORS:
                    anchors.append(self._event(rule, spot, values(pattern, text)))
            elif best[0] is None:
                best = (rule, pattern)
        return best

    def _trace(self, trace: Trace) -> None:
        """A whole traceback: the first exception from the cause on that a rule knows, else the cause itself."""
        chain = trace.from_cause()
        if not chain:
            return
        known: list[tuple[Raised, Rule, str]] = []
        for raised in chain:
            rule, pattern = self._match(_Spot.of(raised, trace))
            for number, text in raised.frames:
                self._match(_Spot(number, text, trace.stamp, raised.who))
            if rule is not None:
                known.append((raised, rule, pattern))
        names = [_short(raised.text) for raised in chain]
        causes = [one for one in known if one[1].kind == "cause"]
        root = chain[0]
        # An exception raised while another is handled replaces it on purpose; one raised from another explains it.
        followed = next((raised for raised in chain[1:] if not raised.wrapper), None)
        replaced = followed is not None and followed.during
        chosen = causes[0] if causes else known[0] if known and (known[0][0] is root or replaced) else None
        if chosen is None:
            self._add(None, _Spot.of(root, trace), {}, names=names)
        else:
            raised, rule, pattern = chosen
            self._add(rule, _Spot.of(raised, trace), values(pattern, raised.searched), names=names)

    def _event(self, rule: Rule | None, spot: _Spot, groups: dict[str, str]) -> Event:
        named = Who(*(groups.get(name, "") for name in ("host", "process", "pid", "rank")))
        name = self.found.source.name
        evidence = spot.evidence or [(spot.line, spot.text)]
        lines = [Evidence(name, at, shown_lines(said)) for at, said in evidence]
        event = Event(rule, spot.text, spot.line, spot.stamp, named.over(spot.who), lines, groups)
        event.carried = spot.stamp is not None and spot.stamp.line not in {
            spot.line,
            *(at for at, _ in evidence),
        }
        if event.carried and self._stamp is spot.stamp:
            self._undated.append(event)
        elif event.carried:
            event.until = self._stamp  # a traceback that ended after the next time
        return event

    def _add(
        self,
        rule: Rule | None,
        spot: _Spot,
        groups: dict[str, str],
        *,
        names: list[str] | None = None,
        strong: bool = True,
        count: int = 1,
    ) -> None:
        """Keep an event; of equal ones the earliest is kept and the others are counted."""
        label = rule.id if rule else f"?{_masked(spot.text)}"
        key: tuple[str, ...] = (label, spot.who.host, spot.who.pid, spot.who.rank)
        if key not in self._events and len(self._events) >= MOST_EVENTS:
            key = (rule.id if rule else "?",)
        known = self._events.get(key)
        if known is not None:
            known.count += count
            if spot.stamp is None or known.stamp is None or spot.stamp.seconds >= known.stamp.seconds:
                if len(known.evidence) < MOST_EVIDENCE and _masked(spot.text) != _masked(known.text):
                    known.evidence.append(Evidence(self.found.source.name, spot.line, shown_lines(spot.text)))
                return
            count = known.count
        event = self._event(rule, spot, groups)
        event.chain, event.strong, event.count = names or [], strong, count
        self._events[key] = event
        if rule is not None and rule.following and not names:
            self._unfinished = event

    def _finish(self) -> Found:
        for trace in self._traces.values():
            self._trace(trace)
        self._traces.clear()
        events = list(self._events.values())
        for rule in self._rules.rules:
            if rule.compound and (anchors := self._compound.get(rule.id)):
                events += self._whole_file(rule, anchors)
        best: dict[int, Event] = {}
        for event in events:
            other = best.get(event.line)
            if other is None or _rank(event) > _rank(other):
                best[event.line] = event
        source = self.found.source
        for event in best.values():
            event.file = source.name
            event.who = event.who.over(_with_process(source.who, self.found.process))
        self.found.events = sorted(best.values(), key=lambda event: event.line)
        return self.found

    def _whole_file(self, rule: Rule, anchors: list[Event]) -> list[Event]:
        """The event of a rule that looks at the whole file, where all of it holds."""
        seen = [self._seen.get(pattern) for pattern in rule.also]
        if not all(seen) or any(pattern in self._seen for pattern in rule.unless):
            return []
        event = anchors[0]
        for anchor in seen:
            if anchor is not None:
                event.values = {**anchor.values, **event.values}
                event.evidence.append(Evidence(self.found.source.name, anchor.line, shown_lines(anchor.text)))
        event.evidence = sorted(set(event.evidence), key=lambda one: one.line)
        if rule.differ and event.values.get(rule.differ[0]) == event.values.get(rule.differ[1]):
            return []
        event.count = len(anchors)
        return [event]


def _masked(text: str) -> str:
    return _DIGITS.sub("0", text[:120])


def _rank(event: Event) -> tuple[int, int]:
    return (event.rule.priority, event.rule.kind == "cause") if event.rule else (0, 0)


def _with_process(who: Who, process: str) -> Who:
    return Who(who.host, process, who.pid, who.rank) if process and who.process in {"", "Ray worker"} else who


def _short(text: str) -> str:
    return shown(text.partition("\n")[0], 160)


def _looks_wrong(text: str) -> _Wrong | None:
    if _CRASH.search(text[:400]):
        return _Wrong.BROKEN
    match = raised_by(text[:400].partition("\n")[0], after_frames=False)
    if match is not None and not match["name"].endswith("Warning"):
        return _Wrong.BROKEN
    if _LEVEL.search(text[:_LEVEL_WITHIN]) or _CPP_LEVEL.match(text):
        return _Wrong.ERROR
    return None
