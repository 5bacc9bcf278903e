"""The results for people: a table of checks and hosts, then what is not OK with what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verl_musa.checks import Result, Status

COLUMNS = 8
"""Hosts that get a column of their own each; of more, each status gets one."""

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red", Status.UNKNOWN: "magenta"}
_SHOWN = {Status.OK: "ok", Status.WARN: "WARN", Status.FAIL: "FAIL", Status.UNKNOWN: "?"}
NAMED = 6
ALIKE = 4
"""Findings of one check and status that are told in full where each host has another evidence."""


def render(results: Sequence[Result], console: Console) -> None:
    """Print the table, then each finding that is not OK once, with all hosts that it holds for."""
    hosts = list(dict.fromkeys(result.host for result in results if result.host))
    checks = list(dict.fromkeys(result.check for result in results))
    by_place = {(result.check, result.host): result for result in results}
    console.print(
        _by_host(checks, hosts, by_place) if len(hosts) <= COLUMNS else _by_status(checks, hosts, by_place)
    )
    console.print()
    _findings(results, len(hosts), console)
    counts = ", ".join(
        f"{number} {status.value}"
        for status in Status
        if (number := sum(result.status is status for result in results))
    )
    console.print(f"{len(checks)} checks on {len(hosts)} hosts: {counts}", highlight=False)


def _by_host(
    checks: Sequence[str], hosts: Sequence[str], by_place: Mapping[tuple[str, str], Result]
) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("check", no_wrap=True)
    for host in hosts:
        table.add_column(host, overflow="fold")
    for check in checks:
        alone = by_place.get((check, ""))
        cells = [
            _cell(by_place.get((check, host)) or (alone if index == 0 else None))
            for index, host in enumerate(hosts)
        ]
        table.add_row(check, *cells)
    return table


def _cell(result: Result | None) -> Text:
    return (
        Text("-", style="dim")
        if result is None
        else Text(_SHOWN[result.status], style=_COLOURS[result.status])
    )


def _by_status(
    checks: Sequence[str], hosts: Sequence[str], by_place: Mapping[tuple[str, str], Result]
) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("check", *(_SHOWN[status] for status in Status)):
        table.add_column(name, no_wrap=name == "check", overflow="fold")
    for check in checks:
        found = [result for host in (*hosts, "") if (result := by_place.get((check, host))) is not None]
        cells = []
        for status in Status:
            named = [result.host for result in found if result.status is status]
            text = str(len(named) or "") if status is Status.OK else _named(named)
            cells.append(Text(text, style=_COLOURS[status]))
        table.add_row(check, *cells)
    return table


def _named(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - NAMED} more" if len(hosts) > NAMED else ""
    return ", ".join(hosts[:NAMED]) + more


def _findings(results: Sequence[Result], count: int, console: Console) -> None:
    groups: dict[tuple[str, Status, str, str], list[str]] = {}
    for result in results:
        if result.status is not Status.OK:
            groups.setdefault((result.check, result.status, result.evidence, result.fix), []).append(
                result.host
            )
    order = [Status.FAIL, Status.UNKNOWN, Status.WARN]
    told: Counter[tuple[str, Status]] = Counter()
    for (check, status, evidence, fix), hosts in sorted(
        groups.items(), key=lambda one: order.index(one[0][1])
    ):
        told[check, status] += 1
        if told[check, status] > ALIKE:
            continue
        who = "all hosts" if len(hosts) == count > 1 else _named([host for host in hosts if host])
        line = Text(status.value, style=_COLOURS[status])
        line.append(f" {check}" + (f" on {who}" if who else "") + ": ", style="default")
        line.append(evidence, style="default")
        if fix:
            line.append(f"\n  -> {fix}", style="bold default")
        console.print(line)
    for (check, status), number in told.items():
        if number > ALIKE:
            console.print(
                f"{status.value} {check}: {number - ALIKE} more of the kind (--json has all)", highlight=False
            )
    if groups:
        console.print()
