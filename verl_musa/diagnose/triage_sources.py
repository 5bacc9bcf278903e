"""Which files a triage reads, and what their names and folders say about whose they are."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.diagnose.triage_text import NOBODY, Stamp, Who, shown
from verl_musa.errors import RunError

MOST_FILES = 20_000

# No logs, or a second copy of one.
_LEFT_OUT_FOLDERS = {"export_events", "checkpoints", "patches", "hydra", ".hydra", "__pycache__"}
_LEFT_OUT_FILES = {
    "config.yaml",
    "launch.sh",
    "runtime_env.yaml",
    "report.md",
    "triage.json",
    "metrics.jsonl",
    "debug_state.txt",
}
_BINARY = {
    ".bin", ".distcp", ".npy", ".npz", ".parquet", ".pkl", ".png", ".pt", ".pth", ".pyc", ".safetensors", ".so", ".tar", ".whl", ".zip",
}  # fmt: skip
_WORKER = re.compile(r"^(?:worker-[0-9a-f]+-[0-9a-f]+-|python-core-(?:worker|driver)-[0-9a-f]+_)(\d+)\.")
_NAMED = {
    "raylet": "raylet",
    "gcs_server": "gcs_server",
    "dashboard_agent": "dashboard agent",
    "dashboard": "dashboard",
    "job-driver": "job driver",
    "log_monitor": "log_monitor",
    "monitor": "autoscaler",
    "runtime_env": "runtime_env agent",
    "dmesg": "kernel",
    "kern": "kernel",
}
_HOST_FOLDER = re.compile(r"^(?:host|node)[-_=]?\d[\w.-]*$")


@dataclass(frozen=True)
class Source:
    """One thing to read.

    Attributes:
        name: how it is called in the card.
        path: the file; None where ``lines`` holds the text.
        lines: line number, text and time of what was taken out of a JSON file.
        who: what its name and place say.
        written: when it was last written; None where that says nothing.
        attempt: which attempt of a run it is from.
    """

    name: str
    path: Path | None = None
    lines: tuple[tuple[int, str, Stamp | None], ...] = ()
    who: Who = NOBODY
    written: float | None = None
    attempt: int | None = None


@dataclass(frozen=True)
class RunFacts:
    """What the record of a run says, as far as a triage needs it.

    Attributes:
        path: the run directory.
        run_id: its id.
        host: where its head ran.
        status: how it ended.
        exit_reason: why, in the words of the runner.
        started: start of the last attempt, seconds since the epoch.
        ended: its end; None while it runs.
        attempt: its number.
        clocks: host -> what is known of its clock.
        hosts: of a run on several hosts, each one's name -> its address in the training network; their logs lie in folders of
            these names.
    """

    path: Path
    run_id: str
    host: str
    status: str
    exit_reason: str = ""
    started: float | None = None
    ended: float | None = None
    attempt: int = 1
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Clock:
    """A host's clock: ``ahead`` of the head's by seconds; ``zone`` is its offset from UTC in seconds where it is known."""

    ahead: float = 0.0
    zone: int | None = None


def clocks_of(value: Any, where: str) -> dict[str, Clock]:
    """``{host: {"ahead_s": 1.5, "utc_offset_s": 28800}}`` as clocks.

    Raises:
        RunError: it is of another form.
    """
    try:
        return {
            str(host): Clock(
                float(entry.get("ahead_s", 0.0)),
                None if entry.get("utc_offset_s") is None else int(entry["utc_offset_s"]),
            )
            for host, entry in value.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise RunError(
            "the clocks of the hosts cannot be read",
            where=where,
            found=str(error),
            expected='{"HOST": {"ahead_s": 1.5, "utc_offset_s": 28800}}',
            fix="mend or remove the file; without it the clocks are taken for equal",
        ) from error


def sources_of_paths(paths: Iterable[Path]) -> list[Source]:
    """What was named on the command line: a file as it is, a folder with everything below it.

    Raises:
        RunError: there is no such file.
    """
    found: list[Source] = []
    for path in paths:
        if path.is_dir():
            base = path.resolve()
            found += [_source(file, base, path.name or str(base)) for file in _walk(base)]
        elif path.exists():
            found.append(_source(path.resolve(), path.resolve().parent, ""))
        else:
            raise RunError(
                "no such run, file or folder",
                where=str(path),
                expected="the id of a run, a unique prefix of one, its path, or log files and folders",
                fix="name one of those; --runs-dir says where runs are",
            )
    return found


def sources_of_run(run: RunFacts) -> list[Source]:
    """The logs of a run's last attempt."""
    base = run.path.resolve()
    logs = base / "logs"
    found = []
    for file in () if logs.is_symlink() else _walk(logs):
        source = _source(file, base, "")
        if source.attempt not in {None, run.attempt}:
            continue
        if "proof" in file.relative_to(base).parts and file.suffix == ".json":
            continue
        named = next((part for part in file.relative_to(base).parts[:-1] if part in run.hosts), "")
        host = named or source.who.host or run.host
        who = Who(host, source.who.process, source.who.pid)
        found.append(Source(source.name, source.path, (), who, source.written, source.attempt))
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """Every plain file below ``folder`` that may be a log, in order; nothing is followed out of it."""
    left = MOST_FILES
    for here, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT_FOLDERS)
        for name in sorted(files):
            path = Path(here, name)
            if name in _LEFT_OUT_FILES or path.suffix in _BINARY or path.is_symlink() or not path.is_file():
                continue
            left -= 1
            if left < 0:
                return
            yield path


def _source(path: Path, base: Path, shown_base: str) -> Source:
    relative = path.relative_to(base)
    parts = relative.parts[:-1]
    attempt = next((int(part[8:]) for part in parts if re.fullmatch(r"attempt-\d{1,6}", part)), None)
    try:
        written: float | None = path.stat().st_mtime
    except OSError:
        written = None
    name = str(Path(shown_base) / relative) if shown_base else str(relative)
    return Source(shown(name), path, (), _who(path.name, parts), written, attempt)


def _who(name: str, parts: tuple[str, ...]) -> Who:
    host = next((found for part in reversed(parts) if (found := _host(part))), "")
    if match := _WORKER.match(name):
        return Who(host=host, process="Ray worker" if "driver" not in name else "driver", pid=match[1])
    process = next((process for start, process in _NAMED.items() if name.startswith(start)), "")
    return Who(host=host, process=process)


def _host(part: str) -> str:
    try:
        return str(ipaddress.ip_address(part))
    except ValueError:
        return part if _HOST_FOLDER.match(part) else ""
