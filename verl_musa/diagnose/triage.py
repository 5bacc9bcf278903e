"""First triage: of everything that went wrong in the logs of a job, what went wrong first.

Public face: :func:`triage_run` and :func:`triage_paths`; both return a :class:`~verl_musa.diagnose.triage_card.Card`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from verl_musa.diagnose.triage_card import MOST_EVIDENCE, UNKNOWN, Card, Folded, Verdict, Where, time_text
from verl_musa.diagnose.triage_json import expanded, run_source
from verl_musa.diagnose.triage_rules import Rules, shipped_rules
from verl_musa.diagnose.triage_scan import Event, Found, Scan, Searcher
from verl_musa.diagnose.triage_sources import Clock, RunFacts, Source, sources_of_paths, sources_of_run
from verl_musa.diagnose.triage_text import Evidence, Stamp, shown

SAME_MOMENT_S = 2.0
"""Clocks and buffers of different processes are not trusted to be better than this."""

MOST_UNKNOWN = 6
QUARTER_HOUR = 900
LARGEST_ZONE = 14 * 3600
RUN_FIX = (
    "read the lines above in their files; send them with `verl-musa triage --json` if a rule should know them"
)


def triage_run(run: RunFacts, *, rules: Rules | None = None, seconds: float | None = None) -> Card:
    """Triage the last attempt of a run; ``seconds``: stop reading after that long, and say so."""
    sources = [expanded(source) for source in sources_of_run(run)]
    if run.status == "failed" and run.exit_reason:
        sources.append(run_source(run))
    return triage(sources, rules=rules, run=run, clocks=run.clocks, seconds=seconds)


def triage_paths(
    paths: Iterable[Path],
    *,
    rules: Rules | None = None,
    clocks: Mapping[str, Clock] | None = None,
    since: float | None = None,
) -> Card:
    """Triage files, and folders with everything below them; ``since``: what is older, in seconds since the epoch, is left out.

    Raises:
        RunError: one is not there.
    """
    sources = [expanded(source) for source in sources_of_paths(paths)]
    return triage(sources, rules=rules, clocks=clocks or {}, since=since)


def triage(
    sources: Sequence[Source],
    *,
    rules: Rules | None = None,
    run: RunFacts | None = None,
    clocks: Mapping[str, Clock] | None = None,
    seconds: float | None = None,
    since: float | None = None,
) -> Card:
    """Read all sources and say what went wrong first."""
    searcher = Searcher(rules or shipped_rules())
    late = _deadline(seconds)
    year = run.started if run else time.time()
    found = [Scan(searcher, source, year=year, late=late).run() for source in sources if not late()]
    notes = [f"{shown(one.source.name)}: {shown(one.trouble)}" for one in found if one.trouble]
    if len(found) < len(sources):
        notes.append(f"{len(sources) - len(found)} files were not read for lack of time")
    notes += _correct(found, clocks or {}, run)
    events = sorted((event for one in found for event in one.events), key=_order)
    if since is not None:
        older = sum(event.count for event in events if event.when is not None and event.when < since)
        events = [event for event in events if event.when is None or event.when >= since]
        notes += [f"{older} lines from before {time_text(since)} were left out"] if older else []
    card = _decide(events, run)
    size = sum(one.read or sum(len(text) for _, text, _ in one.source.lines) for one in found)
    return replace(card, notes=(*card.notes, *notes), files=len(found), bytes_read=size)


def _deadline(seconds: float | None) -> Callable[[], bool]:
    if seconds is None:
        return lambda: False
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


# -- time -------------------------------------------------------------------------------------------------------------------------


def _correct(found: Sequence[Found], clocks: Mapping[str, Clock], run: RunFacts | None) -> list[str]:
    """Give every event its time by the head's clock; says what was corrected."""
    inferred = _zone_of_run(found, run)
    corrected: dict[str, Clock] = {}
    for index, one in enumerate(found):
        for event in one.events:
            event.source = index
            event.clock = one.source.who.host or event.who.host
            clock = clocks.get(event.clock) or Clock()
            if clock.ahead:
                corrected[event.clock] = clock
            stamp = event.stamp
            if stamp is None:
                event.when, event.about = one.source.written, True
                continue
            zone = clock.zone if clock.zone is not None else inferred
            event.when = event.since = _corrected(stamp, zone, clock)
            if event.carried:
                latest = _corrected(event.until, zone, clock) if event.until else one.source.written
                event.when = max(event.since, latest or event.since)
    return [
        f"times of {host} corrected by {-clock.ahead:+.3f} s" for host, clock in sorted(corrected.items())
    ]


def _corrected(stamp: Stamp, zone: int, clock: Clock) -> float:
    return stamp.seconds - (zone if stamp.zone is None else stamp.zone) - clock.ahead


def _when(event: Event) -> str:
    if event.carried and event.since is not None:
        return f"after {time_text(event.since)}"
    return time_text(event.when, about=event.about)


def _zone_of_run(found: Sequence[Found], run: RunFacts | None) -> int:
    """The zone that logs without one are written in: the record is in UTC, and the first lines come right after its start.

    Outside of a run, that of this machine: a log that is read where it was written is the usual case.
    """
    if run is None:
        return _zone_here(found)
    started = run.started
    if started is None:
        return 0
    firsts = [
        one.first.seconds for one in found if one.first and one.first.zone is None and one.source.attempt
    ]
    near = [first for first in firsts if abs(first - started) <= LARGEST_ZONE]
    return round((min(near) - started) / QUARTER_HOUR) * QUARTER_HOUR if near else 0


def _zone_here(found: Sequence[Found]) -> int:
    first = next((one.first.seconds for one in found if one.first and one.first.zone is None), None)
    return 0 if first is None else time.localtime(first).tm_gmtoff


def _order(event: Event) -> tuple[float, int, int]:
    return (float("inf") if event.when is None else event.when, event.source, event.line)


# -- decision ---------------------------------------------------------------------------------------------------------------------


def _decide(events: list[Event], run: RunFacts | None) -> Card:
    if run is not None and run.status == "succeeded":
        return Card(Verdict.CLEAN, notes=("the run succeeded",))
    causes = [event for event in events if event.rule and event.rule.kind == "cause"]
    consequences = [event for event in events if event.rule and event.rule.kind == "consequence"]
    unknown = [event for event in events if event.rule is None]
    strong = [event for event in unknown if event.strong]
    if causes:
        first = _first(causes)
        return _known(first, Verdict.FOUND, causes, consequences, strong)
    if run is not None and run.status == "interrupted":
        return Card(Verdict.CLEAN, notes=(f"the run was interrupted: {shown(run.exit_reason)}",))
    if consequences and not _before(strong, consequences):
        first = _most_telling(consequences)
        return _known(first, Verdict.CONSEQUENCE, [], consequences, strong)
    if strong or unknown or (run is not None and run.status == "failed"):
        return _unknown(strong or unknown, unknown, consequences, run)
    return Card(Verdict.CLEAN)


def _first(events: Sequence[Event]) -> Event:
    """The earliest. Where other hosts have something that is no later than clocks can tell, the one whose rule says most."""
    earliest = events[0]
    if earliest.when is None:
        return earliest
    end = earliest.when + SAME_MOMENT_S
    hosts = {earliest.clock: earliest}
    for event in events[1:]:
        if event.when is not None and event.when <= end:
            hosts.setdefault(event.clock, event)
    return max(hosts.values(), key=lambda event: event.rule.priority if event.rule else 0)


def _most_telling(consequences: Sequence[Event]) -> Event:
    """Of what comes in the same moment as the earliest, on any host, the one whose rule says most.

    The order of consequences so close together says nothing: the driver may hear of a death before the host that it happened on has
    written a line of it.
    """
    earliest = consequences[0].when
    if earliest is None:
        return consequences[0]
    near = [
        event for event in consequences if event.when is not None and event.when <= earliest + SAME_MOMENT_S
    ]
    return max(near, key=lambda event: (event.rule.priority if event.rule else 0, bool(event.who.host)))


def _before(strong: Sequence[Event], consequences: Sequence[Event]) -> bool:
    """Whether something unknown was there before every consequence, as far as the times tell."""
    if not strong:
        return False
    return any(event.about for event in strong) or _order(strong[0]) <= _order(consequences[0])


def _known(
    first: Event,
    verdict: Verdict,
    causes: Sequence[Event],
    consequences: Sequence[Event],
    strong: Sequence[Event],
) -> Card:
    rule = first.rule
    if rule is None:
        raise AssertionError("a known event has a rule")
    values = {name: shown(value, 200) for name, value in first.values.items()}
    values = {
        "host": first.who.host or "?",
        "process": first.who.process or "?",
        "pid": first.who.pid or "?",
    } | values
    later = [event for event in causes if event is not first]
    following = [event for event in consequences if event is not first]
    return Card(
        verdict,
        rule=rule.id,
        layer=rule.layer,
        what=rule.filled(rule.what, values),
        where=_where(first),
        when=_when(first),
        evidence=tuple(first.evidence[:MOST_EVIDENCE]),
        chain=tuple(first.chain),
        why=_why(first, verdict, later, following),
        consequences=tuple(_fold(following)),
        others=tuple(_fold([event for event in (*later, *strong) if event.rule is not rule])),
        fix=rule.filled(rule.fix, values),
        links=rule.links,
    )


def _why(first: Event, verdict: Verdict, later: Sequence[Event], following: Sequence[Event]) -> str:
    said = []
    earlier = [event for event in following if _order(event) < _order(first)]
    if verdict is Verdict.CONSEQUENCE:
        said.append("no log here has a cause; " + (
            f"of what only follows from one this says most, within {SAME_MOMENT_S:g} s of the earliest" if earlier
            else "this is the earliest of what only follows from one"
        ))  # fmt: skip
    else:
        said.append(
            "it is the only cause in these logs"
            if not later
            else f"it is the earliest of {len(later) + 1} causes"
        )
    other = next((event for event in later if event.rule is not first.rule), None)
    if (
        other is not None
        and other.rule is not None
        and _exact(first)
        and _exact(other)
        and other.when
        and first.when
    ):
        said.append(f"the next, {other.rule.id}, came {max(0.0, other.when - first.when):.1f} s later")
    if following:
        said.append(
            f"{sum(event.count for event in following)} other lines can only follow from a failure elsewhere"
        )
    if earlier and verdict is Verdict.FOUND:
        said.append(
            f"{sum(event.count for event in earlier)} of those stand before it, and explain nothing by themselves"
        )
    if len(first.chain) > 1:
        said.append(f"the traceback was read from its cause: {len(first.chain)} exceptions")
    if first.when is None:
        said.append("these lines have no time: they are taken in the order of the files")
    elif first.about:
        said.append("its line has no time; that of its file was taken")
    elif first.carried:
        said.append("its line has no time; it lies between those of its neighbours")
    return "; ".join(said)


def _exact(event: Event) -> bool:
    return event.when is not None and not event.about and not event.carried


def _unknown(
    shown_first: Sequence[Event],
    unknown: Sequence[Event],
    consequences: Sequence[Event],
    run: RunFacts | None,
) -> Card:
    if not shown_first:
        what = "the run failed, and no log says anything abnormal"
        reason = run.exit_reason if run is not None else ""
        return Card(
            Verdict.UNKNOWN,
            rule=UNKNOWN,
            what=what,
            where=Where(text="not named in the logs"),
            evidence=(Evidence("run.json", 1, shown(reason)),) if reason else (),
            why="there is nothing else",
            consequences=tuple(_fold(consequences)),
            fix=RUN_FIX,
        )
    first = shown_first[0]
    evidence = list(first.evidence)
    for event in shown_first[1:MOST_UNKNOWN]:
        evidence += event.evidence[-1:]
    rest = [event for event in unknown if event not in shown_first[:MOST_UNKNOWN]]
    why = f"no rule fits any of {len(unknown)} abnormal lines; these are the earliest"
    if consequences:
        why += (
            f"; {sum(event.count for event in consequences)} other lines only follow from a failure elsewhere"
        )
    return Card(
        Verdict.UNKNOWN,
        rule=UNKNOWN,
        what=shown(first.text.partition("\n")[0], 300),
        where=_where(first),
        when=_when(first),
        evidence=tuple(evidence[: MOST_EVIDENCE + 4]),
        chain=tuple(first.chain),
        why=why,
        consequences=tuple(_fold(consequences)),
        others=tuple(_fold(rest)),
        fix=RUN_FIX,
    )


def _where(event: Event) -> Where:
    who = event.who
    parts = {name: shown(getattr(who, name), 160) for name in ("host", "process", "pid", "rank")}
    return Where(**parts, text=shown(str(who), 400))


def _fold(events: Sequence[Event]) -> list[Folded]:
    """One entry a rule, or a text where there is none, in order of time."""
    folded: dict[str, Folded] = {}
    for event in events:
        text = (
            event.rule.filled(event.rule.what, event.values)
            if event.rule
            else shown(event.text.partition("\n")[0], 160)
        )
        key = event.rule.id if event.rule else text
        known = folded.get(key)
        if known is not None:
            folded[key] = replace(known, count=known.count + event.count)
        else:
            name = event.rule.id if event.rule else UNKNOWN
            place = f"{shown(event.file)}:{event.line}"
            folded[key] = Folded(name, shown(text, 300), event.count, _when(event), place)
    return list(folded.values())
