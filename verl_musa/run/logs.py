"""The logs of a run: those on its hosts while it runs, else those that were gathered in its directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.cluster.fleet import Fleet
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.logs import tail
from verl_musa.cluster.ssh import Remote, Ssh
from verl_musa.errors import RunError
from verl_musa.recipe import Site
from verl_musa.run.control import health, hosts_of_run
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import GOING_ON, RunRecord, load_record

AGAIN_S = 2.0
LONGEST = 2000
Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """Which logs: of a host, of a worker by its pid, or a file by its name; by default the driver's. ``files``: their names only."""

    host: str | None = None
    worker: str | None = None
    name: str | None = None
    lines: int = 50
    files: bool = False


def show_logs(
    run: RunDirectory,
    site: Site,
    wanted: Wanted,
    say: Say,
    *,
    keep: bool = False,
    remote: Remote | None = None,
) -> int:
    """Say the lines, host by host; with ``keep`` go on with new ones while the run goes on. Returns 0, or 3 where a host is silent.

    Raises:
        RunError: no such host, or a worker that is no number.
    """  # fmt: skip
    _check(load_record(run.record), wanted)
    shown: dict[str, list[str]] = {}
    while True:
        record = load_record(run.record)
        texts, code = _texts(run, record, site, wanted, remote)
        for who, text in texts.items():
            fresh = _fresh(shown.get(who, []), text.splitlines())
            shown[who] = text.splitlines()
            if fresh and len(texts) > 1:
                say(f"== {who}")
            for line in fresh:
                say(line)
        if not keep or record.status not in GOING_ON:
            return code
        time.sleep(AGAIN_S)


def _check(record: RunRecord, wanted: Wanted) -> None:
    names = [host.name for host in record.attempt.hosts]
    if wanted.host is not None and wanted.host not in names:
        raise RunError(
            f"the run has no host {wanted.host}",
            where=record.run_id,
            found=", ".join(names) or f"one host, {record.host}",
            expected="one of these",
            fix="leave --host out for all of them",
        )
    if wanted.worker is not None and not wanted.worker.isdigit():
        raise RunError("--worker wants the pid of a worker", found=ascii(wanted.worker[:40]), expected="a number", fix="`--files` shows their files: worker-…-PID.out")  # fmt: skip
    if wanted.name is not None and ("/" in wanted.name or wanted.name.startswith(".")):
        raise RunError("--name wants the name of a file", found=ascii(wanted.name[:80]), expected="a name without a folder", fix="`--files` shows them")  # fmt: skip


def _fresh(before: list[str], now: list[str]) -> list[str]:
    """The lines of ``now`` that come after those that were shown, both being the ends of one growing file."""
    for start in range(len(before)):
        if now[: len(before) - start] == before[start:]:
            return now[len(before) - start :]
    return now


def _texts(
    run: RunDirectory, record: RunRecord, site: Site, wanted: Wanted, remote: Remote | None
) -> tuple[dict[str, str], int]:
    live = record.cluster is not None and health(run, record).status in {*GOING_ON, "abandoned"}
    if live and record.attempt.hosts:
        return _from_hosts(record, site, wanted, remote)
    return _gathered(run, record, wanted), 0


def _from_hosts(record: RunRecord, site: Site, wanted: Wanted, remote: Remote | None) -> tuple[dict[str, str], int]:  # fmt: skip
    hosts = [host for host in hosts_of_run(record) if wanted.host in {None, host.name}]
    request: dict[str, Any] = {"cluster": record.run_id, "lines": wanted.lines}
    if wanted.worker is not None:
        request["worker"] = int(wanted.worker)
    elif wanted.name is not None:
        request["name"] = wanted.name
    elif record.attempt.submission_id:
        request["job"] = record.attempt.submission_id
    if wanted.worker is None and wanted.name is None and wanted.host is None and not wanted.files:
        hosts = hosts[:1]  # the driver's: on the head
    answers = Fleet(remote or Ssh(site), site.python).call_all(hosts, "logs", lambda _: request)
    texts, code = {}, 0
    for host in hosts:
        one = answers[host.name]
        if not one.ok or one.answer is None:
            texts[host.name], code = f"(does not answer: {one.why})", 3
        else:
            texts[host.name] = "\n".join(one.answer["files"]) if wanted.files else str(one.answer["text"])
    return texts, code


def _gathered(run: RunDirectory, record: RunRecord, wanted: Wanted) -> dict[str, str]:
    base = run.logs / "ray" / f"attempt-{record.attempt.number}"
    hosts: list[Host] = hosts_of_run(record)
    folders = {host.name: base / host.name for host in hosts} or {record.host: base}
    found = {}
    for name, folder in folders.items():
        if wanted.host not in {None, name}:
            continue
        files = sorted(path for path in folder.glob("*") if path.is_file() and not path.is_symlink())
        text = "\n".join(path.name for path in files) if wanted.files else _lines(files, record, wanted)
        if text:
            found[name] = text
    return found


def _lines(files: list[Path], record: RunRecord, wanted: Wanted) -> str:
    if wanted.worker is not None:
        fitting = [
            path
            for path in files
            if path.stem.startswith("worker-") and path.stem.endswith(f"-{wanted.worker}")
        ]
    else:
        name = wanted.name or f"job-driver-{record.attempt.submission_id}.log"
        fitting = [path for path in files if path.name == name]
    return "\n".join(tail(path, wanted.lines, longest=LONGEST) for path in fitting)
