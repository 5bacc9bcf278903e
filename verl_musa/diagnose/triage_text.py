"""One line of a log: made safe to show, and what its prefixes and its time stamp say."""

from __future__ import annotations

import calendar
import re
import time
from dataclasses import dataclass, replace

LONGEST_SHOWN = 600
REPLACED = "\ufffd"
"""What stands for a character that a terminal would obey, or that hides text or turns its direction."""

# Each repeats one character class that its own start is not in, so that no input makes it slow.
ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\)|[@-Z\\^_])")
_RAY = re.compile(r"^\((?P<name>[^()\n]{1,160}?)(?: pid=(?P<pid>\d{1,9}))?(?:, ip=(?P<ip>[\w.:]{1,64}))?\) ?")
_RAY_NAMES = ("raylet", "autoscaler", "gcs_server", "scheduler")
_RANK = re.compile(r"^\[(?:rank|default)(\d{1,6})\]:? ?")
_REPEATED = re.compile(r"\[repeated (\d{1,9})x across cluster\]")
_SGLANG = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: (?:DP|TP|PP|EP|ATTN_CP|CP)\d{1,5})+)\]")


@dataclass(frozen=True, slots=True)
class Who:
    """Which process on which host; empty where a log does not say."""

    host: str = ""
    process: str = ""
    pid: str = ""
    rank: str = ""

    def over(self, other: Who) -> Who:
        """This one, completed from ``other`` unless the two name different processes."""
        if self.pid and other.pid and self.pid != other.pid:
            return replace(self, host=self.host or other.host)
        return Who(
            self.host or other.host,
            self.process or other.process,
            self.pid or other.pid,
            self.rank or other.rank,
        )

    def __str__(self) -> str:
        parts = [f"host {self.host}" if self.host else "", self.process]
        parts += [f"pid {self.pid}" if self.pid else "", f"rank {self.rank}" if self.rank else ""]
        return ", ".join(part for part in parts if part) or "not named in the logs"


NOBODY = Who()


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its prefixes; ``repeated``: of how many processes Ray folded it together."""

    text: str
    who: Who
    repeated: int = 1


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time as written: seconds since the epoch as if it were UTC, its zone in seconds where it is written, and its line."""

    seconds: float
    zone: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of a log; several, where a message goes over several."""

    file: str
    line: int
    text: str


def shown(raw: bytes | str, longest: int = LONGEST_SHOWN) -> str:
    """Text that may go to any terminal: no escapes, no control characters, no more than ``longest`` characters."""
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "replace")
    cut = raw[: longest * 8]
    plain = ESCAPES.sub(b"", cut) if b"\x1b" in cut else cut
    text = plain.rstrip(b"\r\n").decode("utf-8", "replace").replace("\t", " ")
    if not text.isprintable():
        text = "".join(char if char.isprintable() else REPLACED for char in text)
    return text if len(text) <= longest and len(cut) == len(raw) else text[:longest] + "…"


def shown_lines(raw: str, longest: int = LONGEST_SHOWN) -> str:
    """The same for a text of several lines, each of which is cut."""
    return "\n".join(shown(line, longest) for line in raw.split("\n"))


def split_prefixes(text: str) -> Line:
    """Take off ``(Class pid=…, ip=…)`` of Ray and ``[rank3]:`` of torch, in whatever order."""
    who, repeated = NOBODY, 1
    for _ in range(3):
        if match := _RAY.match(text):
            if not match["pid"] and match["name"].split(" ")[0] not in _RAY_NAMES:
                break
            name = match["name"].rpartition(".")[2]
            who = who.over(Who(host=match["ip"] or "", process=name, pid=match["pid"] or ""))
        elif match := _RANK.match(text):
            who = who.over(Who(rank=match[1]))
        else:
            break
        text = text[match.end() :]
    if match := _SGLANG.match(text):
        who = Who(who.host, who.process or "SGLang scheduler", who.pid, who.rank or match[1].strip())
    if "[repeated " in text and (match := _REPEATED.search(text)):
        repeated = int(match[1])
        text = text[: match.start()].rstrip()
    return Line(text, who, repeated)


_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_MONTH = "|".join(_MONTHS)
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_FULL = re.compile(
    rf"(?<!\d)(?P<Y>\d{{4}})-(?P<M>\d\d)-(?P<D>\d\d)[T _]{_CLOCK}(?: ?(?P<zone>Z\b|UTC\b|[+-]\d\d:?\d\d(?!\d)))?"
)
_CTIME = re.compile(rf"\b(?P<mon>{_MONTH}) {{1,2}}(?P<D>\d{{1,2}}) {_CLOCK} (?P<Y>\d{{4}})")
_SYSLOG = re.compile(rf"^(?P<mon>{_MONTH}) {{1,2}}(?P<D>\d{{1,2}}) {_CLOCK}")
_GLOG = re.compile(rf"(?<![\w-])[IWEF](?P<M>\d\d)(?P<D>\d\d) {_CLOCK}")
_SHORT = re.compile(rf"(?<![\w-])(?P<M>\d\d)-(?P<D>\d\d) {_CLOCK}")
_BARE = re.compile(rf"^\W{{0,2}}{_CLOCK}(?![\d:])")
_FORMS = (_FULL, _CTIME, _SYSLOG, _GLOG, _SHORT, _BARE)
_STAMP_WITHIN = 120
_DAY = 86400
_YEARS = range(1970, 10000)
HALF_A_YEAR = 6


def find_stamp(text: str, before: float | None = None) -> Stamp | None:
    """The time stamp at the start of a line, in any of the usual forms.

    ``before``: the stamp before it in the same file, or the file's own time: it gives the year or the date to forms that lack them.
    """
    head = text[:_STAMP_WITHIN]
    if ":" not in head:
        return None
    for form in _FORMS:
        match = form.search(head)
        if match is not None and (stamp := _stamp(match.groupdict(), before)) is not None:
            return stamp
    return None


def _stamp(part: dict[str, str | None], before: float | None) -> Stamp | None:
    clock = int(part["h"] or 0) * 3600 + int(part["m"] or 0) * 60 + int(part["s"] or 0)
    if clock > _DAY:
        return None
    fraction = float(f"0.{part['f']}") if part["f"] else 0.0
    if "D" not in part:  # no date
        if before is None:
            return None
        seconds = before - before % _DAY + clock
        # A clock that went back by half a day or more went past midnight.
        return Stamp((seconds + _DAY if before - seconds > _DAY / 2 else seconds) + fraction)
    month = _MONTHS[part["mon"] or ""] if "mon" in part else int(part["M"] or 0)
    day = int(part["D"] or 0)
    year = int(part["Y"] or 0) if "Y" in part else _year(month, before)
    if year is None or year not in _YEARS or month not in range(1, 13) or day not in range(1, 32):
        return None
    # What day February has not, timegm carries over into March: harmless, and no log writes it.
    return Stamp(calendar.timegm((year, month, day, 0, 0, 0)) + clock + fraction, _zone(part.get("zone")))


def _year(month: int, before: float | None) -> int | None:
    if before is None:
        return None
    now = time.gmtime(before)
    apart = month - now.tm_mon
    return now.tm_year - (apart > HALF_A_YEAR) + (apart < -HALF_A_YEAR)


def _zone(text: str | None) -> int | None:
    if not text:
        return None
    if text in {"Z", "UTC"}:
        return 0
    seconds = int(text[1:3]) * 3600 + int(text[-2:]) * 60
    return -seconds if text[0] == "-" else seconds
