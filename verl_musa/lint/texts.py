"""Rules that hold for a piece of text wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from verl_musa.lint import addresses, paths, rules, secrets
from verl_musa.lint.model import Finding, Kind, Source

_INTERFACE_VARIABLE: Final = re.compile(
    r"(?:[MNRHI]CCL|GLOO|TP|UCX|NVSHMEM|SGLANG|NIC)\w*_(?:SOCKET_IFNAME|IFNAME|NET_DEVICES)|GLOO_IFACE"
)
_CARD_VARIABLE: Final = re.compile(r"\w+_(?:IB_HCA|HCA_LIST|IB_DEVICES?)")
_INTERFACE: Final = re.compile(
    r"=?(?:eth|en[opsx]|bond|ib|ens|eno|enp|br|veth|net|team|roce|hsn|vlan)[\w.@-]*\d[\w.@-]*"
)
_CARD: Final = re.compile(r"=?[a-z]+\d*_(?:bond_)?\d+(?::\d+)?")


def path_findings(
    source: Source, text: str, line: int, column: int, *, statement: int = 0, **reading: bool
) -> Iterator[Finding]:
    """Findings about the paths in ``text``: as one path, else as a line that holds some.

    ``reading`` takes the options of :func:`verl_musa.lint.paths.judge`.
    """
    whole = paths.judge(text, **reading)
    for hit in [whole] if whole else paths.inside(text, **reading):
        place = line + text[: text.find(hit.path)].count("\n")
        yield source.finding(
            hit.rule, place, column if place == line else 0, f"{hit.path!r}", statement=statement or line
        )


def address_findings(
    source: Source, text: str, line: int, column: int, *, statement: int = 0
) -> Iterator[Finding]:
    """Findings about the addresses in ``text``."""
    for address in addresses.inside(text):
        place = line + text[: text.find(address)].count("\n")
        yield source.finding(
            rules.ADDRESS,
            place,
            column if place == line else 0,
            f"host {address!r}",
            statement=statement or line,
        )


def secret_findings(source: Source) -> Iterator[Finding]:
    """Findings about secrets that their form gives away, on every line of a file. The secret itself is never shown."""
    for number, line in enumerate(source.lines, start=1):
        for offset, name in secrets.known(line):
            column = offset if source.kind is Kind.YAML else len(line[:offset].encode())
            yield source.finding(rules.SECRET, number, column + 1, f"{name} in plain text")


def setting_findings(
    source: Source, name: str, value: str, line: int, column: int, *, statement: int = 0
) -> Iterator[Finding]:
    """Findings about one variable or key and its literal value: secrets, and network interfaces."""
    if secrets.is_secret_value(name, value):
        message = f"{name} has its value written out"
        yield source.finding(rules.SECRET, line, column, message, statement=statement)
    named = [part.strip() for part in value.split(",")]
    interface = _INTERFACE_VARIABLE.fullmatch(name) and any(_INTERFACE.fullmatch(part) for part in named)
    card = _CARD_VARIABLE.fullmatch(name) and any(_CARD.fullmatch(part) for part in named)
    if interface or card:
        yield source.finding(rules.INTERFACE, line, column, f"{name}={value}", statement=statement)
