"""The hosts of a run: who they are, as ``site.yaml``, a hostfile or ``--hosts`` names them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_musa.errors import HostError
from verl_musa.recipe.site import Site, host_name

MOST_SLOTS = 64
LARGEST_HOSTFILE = 1024**2
_SLOTS = re.compile(r"slots=([0-9]{1,3})", re.ASCII)


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: what it is called in messages.
        address: where ssh goes: a name or an IP address.
        head: whether Ray's head and the job's driver run there.
        slots: devices that may be used; None: as many as the recipe asks for.
        training: its address in the training network, where the site gives it; else the host is asked.
    """

    name: str
    address: str
    head: bool = False
    slots: int | None = None
    training: str | None = None


def hosts_of(site: Site, named: Sequence[str] = (), *, head: str | None = None) -> tuple[Host, ...]:
    """The hosts of a site, the head first and the others in their order.

    Args:
        site: the site.
        named: hosts that the user names (``--hosts``): names of the site's hosts, which then narrows them, or, where the site
            has none, hosts of their own (``node1`` or ``node1 slots=8``).
        head: the host that the user wants for the head; None: the site's.

    Raises:
        HostError: no hosts, no head, a host twice, or a text that cannot be a host's name.
    """
    where = str(site.source or "site.yaml")
    known = _of_site(site)
    entries = [_parse(text, "--hosts") for text in named]
    if known and entries:
        by_name = {host.name: host for host in known}
        strangers = [entry.name for entry in entries if entry.name not in by_name]
        if strangers:
            raise HostError(
                f"--hosts names {', '.join(strangers)}, which the site does not know",
                where=where,
                found=", ".join(by_name),
                expected="names of these hosts",
                fix="correct --hosts, or add the host to the site",
            )
        known = [by_name[entry.name] for entry in entries]
    hosts = known or entries
    if not hosts:
        raise HostError(
            "no hosts are known",
            where=where,
            found="neither hosts nor hostfile, and no --hosts",
            expected="hosts or hostfile in site.yaml, or --hosts NAME,NAME",
            fix="add them to site.yaml (site.example.yaml shows how)",
        )
    if head is None and (len(hosts) > 1 or hosts[0].name == site.head):
        head = site.head
    return _with_head(hosts, head, where)


def _with_head(hosts: Sequence[Host], head: str | None, where: str) -> tuple[Host, ...]:
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise HostError(f"host {twice} is named twice", where=where, found=", ".join(names), expected="each host once",
                        fix=f"remove one {twice}")  # fmt: skip
    if head is None and len(hosts) == 1:
        head = names[0]
    if head not in names:
        raise HostError(
            "the head is not named" if head is None else f"the head {head} is none of the hosts",
            where=where,
            found=", ".join(names),
            expected="the name of the host where Ray's head runs",
            fix=f"add `head: {names[0]}`, or another of them, to site.yaml, or give --head {names[0]}",
        )
    marked = [Host(host.name, host.address, host.name == head, host.slots, host.training) for host in hosts]
    return tuple(sorted(marked, key=lambda host: not host.head))


def _of_site(site: Site) -> list[Host]:
    if site.hosts:
        return [Host(one.name, one.address or one.name, False, one.slots, one.training) for one in site.hosts]
    if site.hostfile is None:
        return []
    # A relative one lies beside the site.yaml that names it, wherever the command is given.
    folder = Path() if site.source is None else site.source.parent
    return read_hostfile(folder / Path(site.hostfile).expanduser())


def read_hostfile(path: Path) -> list[Host]:
    """The hosts of a file with one a line: ``NAME`` or ``NAME slots=8``; ``#`` starts a comment.

    Raises:
        HostError: unreadable, or a line that is none of these; the message names it.
    """
    try:
        raw = _beginning(path)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HostError("the hostfile cannot be read", where=str(path), found=str(error), expected="a text file with one host a line",
                        fix="correct hostfile in site.yaml") from error  # fmt: skip
    if len(raw) > LARGEST_HOSTFILE:
        raise HostError("the hostfile is too large", where=str(path), found=f"over {LARGEST_HOSTFILE} bytes",
                        expected="one host a line", fix="check that hostfile in site.yaml names the right file")  # fmt: skip
    # Not splitlines(): it takes characters for ends of a line that an editor does not show.
    numbered = [
        (number, line.partition("#")[0].strip(" \t\r")) for number, line in enumerate(text.split("\n"), 1)
    ]
    return [_parse(line, f"{path}:{number}") for number, line in numbered if line]


def _beginning(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise OSError("it is no plain file")
    with path.open("rb") as stream:
        return stream.read(LARGEST_HOSTFILE + 1)


def _parse(text: str, where: str) -> Host:
    name, *rest = re.split(r"[ \t]+", text)
    try:
        return Host(host_name(name), name, slots=_slots(rest) if rest else None)
    except ValueError as error:
        raise HostError(
            f"not a host: {error}",
            where=where,
            found=ascii(text[:80]),
            expected="NAME or NAME slots=8",
            fix="correct that line",
        ) from error


def _slots(words: Sequence[str]) -> int:
    match = _SLOTS.fullmatch(words[0]) if len(words) == 1 else None
    if match is None or not 1 <= int(match[1]) <= MOST_SLOTS:
        raise ValueError(f"after the name only slots=1 to slots={MOST_SLOTS} may follow")
    return int(match[1])


def chosen(hosts: Sequence[Host], nodes: int | None) -> tuple[tuple[Host, ...], tuple[Host, ...]]:
    """The first ``nodes`` hosts, the head among them, and the others, which are spares; None: all.

    Raises:
        HostError: there are fewer.
    """
    needed = len(hosts) if nodes is None else nodes
    if needed > len(hosts):
        raise HostError(
            f"{needed} hosts are needed and {len(hosts)} are known",
            found=", ".join(host.name for host in hosts),
            expected=f"{needed} hosts",
            fix="name more of them in site.yaml or --hosts, or run on fewer with --nodes",
        )
    return tuple(hosts[:needed]), tuple(hosts[needed:])


def devices_of(hosts: Sequence[Host], asked: int | None, default: int | None = None) -> int:
    """Devices of each host: what is asked for, else the hosts' slots, else ``default``.

    Raises:
        HostError: the hosts' slots differ, are fewer than asked for, or nothing says it.
    """
    slots = {host.slots for host in hosts if host.slots is not None}
    fewest = min(slots, default=None)
    wanted = asked or (fewest if len(slots) == 1 else None) or (default if not slots else None)
    if wanted is None:
        raise HostError(
            "the number of devices is not the same on all hosts"
            if slots
            else "the number of devices is not known",
            found=", ".join(f"{host.name} slots={host.slots}" for host in hosts),
            expected="one number for all hosts",
            fix="give --devices-per-node, or correct the slots",
        )
    if fewest is not None and wanted > fewest:
        short = next(host for host in hosts if host.slots == fewest)
        raise HostError(f"{wanted} devices are asked for on each host", where=short.name, found=f"slots={fewest}",
                        expected=f"at least {wanted}", fix="ask for fewer with --devices-per-node, or correct the slots")  # fmt: skip
    return wanted
