"""Python tracebacks, one line after another: chains, Ray's remote tracebacks inside others, and lines of others between."""

from __future__ import annotations

import enum
import re
from collections import deque
from dataclasses import dataclass, field

from verl_musa.diagnose.triage_text import NOBODY, Stamp, Who, find_stamp

HEADER = "Traceback (most recent call last)"
DIRECT = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"
LONGEST_CHAIN = 24
LONGEST_TRACE = 3000
MOST_NOISE = 40
MOST_BLANK = 2
MESSAGE_LINES = 12
FRAME_LINES = 4

_FRAME = re.compile(r'^\s+File "')
_CARETS = re.compile(r"^\s+[\^~]+[\s\^~]*$")
_REMOTE = re.compile(r"ray::(?P<task>[^\s()]{1,200})\(\) \(pid=(?P<pid>\d{1,9}), ip=(?P<ip>[\w.:]{1,64})")
_NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
_RAISED = re.compile(rf"^(?P<name>{_NAME})(?:\((?P<inner>\w+)\))?(?::(?: (?P<said>.*))?)?$")
_ERROR_NAME = re.compile(r"(?:Error|Exception|Exit|Interrupt|Failure|Failed|Timeout|Timedout|Warning|Abort)$")
_GROUP = re.compile(r"^\s*(?:\+-[+-]*|\+|\|) ?")


class Fed(enum.Enum):
    """What became of a line."""

    TAKEN = 1
    NOT_MINE = 2
    """Somebody else's, in the middle of the traceback."""
    ENDED = 3
    """The traceback was over before this line."""


@dataclass(slots=True)
class Raised:
    """One exception of a chain.

    ``during``: it was raised while the one before it was handled, and not ``from`` it. ``wrapper``: Ray's, around the one of another
    process.
    """

    name: str
    text: str
    line: int
    frames: list[tuple[int, str]]
    who: Who
    during: bool = False
    wrapper: bool = False

    @property
    def searched(self) -> str:
        """What rules look at: the message, and where it was raised."""
        return "\n".join([self.text, *(text for _, text in self.frames[-2:])])


def raised_by(text: str, *, after_frames: bool) -> re.Match[str] | None:
    """The name of an exception that ``text`` begins with; a name that does not look like one counts after frames only."""
    match = _RAISED.match(text)
    if match is None:
        return None
    last = match["name"].rpartition(".")[2]
    if _ERROR_NAME.search(last):
        return match
    return match if after_frames and last[:1].isupper() and not last.isupper() else None


@dataclass(slots=True)
class Trace:
    """A traceback that is being read."""

    line: int
    head: str
    who: Who
    stamp: Stamp | None
    chain: list[Raised] = field(default_factory=list)
    frames: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=FRAME_LINES))
    _remote: Who = NOBODY
    _raised: bool = False  # the last thing was the line of an exception
    _during: bool = False
    _blank: int = 0
    _noise: int = 0
    _said: int = 0
    _lines: int = 0
    _group: bool = False

    @classmethod
    def opened_by(cls, line: int, text: str, who: Who, stamp: Stamp | None) -> Trace | None:
        """A traceback, where ``text`` is the first line of one."""
        remote = _REMOTE.search(text) if "ray::" in text else None
        if HEADER not in text and remote is None:
            return None
        trace = cls(line, text, who, stamp)
        if remote is not None:
            trace._enter(remote, line, text)
        trace._group = "Exception Group" in text
        return trace

    def feed(self, line: int, text: str) -> Fed:
        """Read one more line."""
        self._lines += 1
        if self._lines > LONGEST_TRACE:
            return Fed.ENDED
        if self._group:
            text = _GROUP.sub("", text)
        if (fed := self._structure(line, text)) is not None:
            return fed
        if not text.strip():
            self._blank += 1
            return Fed.TAKEN if self._blank <= MOST_BLANK else Fed.ENDED
        if text[0] in " \t":
            return self._indented(line, text)
        return self._message_goes_on(text) if self._raised else self._plain(line, text)

    def _plain(self, line: int, text: str) -> Fed:
        """A line that is not indented, among frames: the exception, or somebody else's."""
        match = raised_by(text, after_frames=bool(self.frames))
        if match is not None:
            self._close(line, text, match["name"])
            return Fed.TAKEN
        self._noise += 1
        return Fed.NOT_MINE if self._noise <= MOST_NOISE else Fed.ENDED

    def _structure(self, line: int, text: str) -> Fed | None:
        """The lines that hold a chain together."""
        if text.startswith((DIRECT, DURING)):
            self._during = text.startswith(DURING)
            self._blank = 0
            return Fed.TAKEN
        if HEADER in text:
            if self._raised and not self._blank:
                return Fed.ENDED  # another one, right behind
            self._begin()
            return Fed.TAKEN
        if "ray::" in text and (remote := _REMOTE.search(text)):
            self._enter(remote, line, text)
            return Fed.TAKEN
        return None

    def _indented(self, line: int, text: str) -> Fed:
        if _CARETS.match(text):
            return Fed.TAKEN
        if self._raised and not _FRAME.match(text):
            if self._said < MESSAGE_LINES:
                self._said += 1
                self.chain[-1].text += f"\n{text[:400]}"
            return Fed.TAKEN
        if self._raised:
            self._begin()
        self.frames.append((line, text))
        return Fed.TAKEN

    def _message_goes_on(self, text: str) -> Fed:
        """A message of several lines, of which some are indented: Ray's about versions, for one."""
        if not self._said or self._blank or self._said >= MESSAGE_LINES or find_stamp(text, 0.0) is not None:
            return Fed.ENDED
        self._said += 1
        self.chain[-1].text += f"\n{text[:400]}"
        return Fed.TAKEN

    def _begin(self) -> None:
        self.frames.clear()
        self._raised, self._blank, self._said = False, 0, 0

    def _enter(self, remote: re.Match[str], line: int, text: str) -> None:
        """What follows was raised in another process."""
        name = text[: remote.start()].strip().rstrip(":")
        if (match := raised_by(name, after_frames=False)) is not None:
            self._add(
                Raised(
                    match["name"], text[:400], line, list(self.frames), self.who, self._during, wrapper=True
                )
            )
        task = remote["task"].rpartition(".<locals>.")[2]
        self._remote = Who(host=remote["ip"], process=task, pid=remote["pid"])
        self._begin()

    def _close(self, line: int, text: str, name: str) -> None:
        who = self._remote.over(self.who) if self._remote.pid else self.who
        self._add(Raised(name, text[:2000], line, list(self.frames), who, self._during))
        self._begin()
        self._raised, self._during = True, False

    def _add(self, raised: Raised) -> None:
        if len(self.chain) < LONGEST_CHAIN:
            self.chain.append(raised)

    def from_cause(self) -> list[Raised]:
        """The chain in the order in which things went wrong: Ray's wrappers come after what they wrap."""
        return [one for one in self.chain if not one.wrapper] + [one for one in self.chain if one.wrapper]
