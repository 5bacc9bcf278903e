"""What each process of a run has applied, and whether they all agree."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_musa.patching.model import Patch, PatchError

RUN_DIR_ENV = "VERL_MUSA_RUN_DIR"
RECORD_SCHEMA = 1


class ProcessRecord:
    """This process's own record, rewritten whole at each change because Ray ends workers with SIGKILL."""

    def __init__(self, plan: Mapping[str, Any], plan_digest: str) -> None:
        self._targets = frozenset(name for patch in plan["patches"] for name in patch["modules"])
        self._seen: set[str] = set()
        self._data: dict[str, Any] = {
            "schema": RECORD_SCHEMA,
            "series": plan["series"],
            "plan": plan_digest,
            "applied": {},
            "skipped": {},
            "drift": {},
            "refused": [],
            "missed": [],
        }
        self._lock = threading.RLock()
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._after_fork)

    def seen(self, module: str) -> None:
        """Note that a target module came through the hook, whatever became of its patches."""
        with self._lock:
            self._seen.add(module)

    def applied(self, patch: Patch, version: str | None, fingerprints: Mapping[str, str]) -> None:
        """Note that a patch was applied to the targets of one module."""
        with self._lock:
            entry = self._data["applied"].setdefault(
                patch.id, {"distribution": patch.distribution, "version": version, "targets": {}}
            )
            entry["targets"].update(fingerprints)

    def skipped(self, patch: Patch, reason: str) -> None:
        """Note that a patch is not needed here, and why."""
        with self._lock:
            self._data["skipped"][patch.id] = reason

    def drifted(self, patch: Patch, target: str, found: str) -> None:
        """Note that a patch was let through although its target has changed."""
        with self._lock:
            self._data["drift"].setdefault(patch.id, {})[target] = found

    def refused(self, error: PatchError) -> None:
        """Note that the process was stopped here."""
        with self._lock:
            self._data["refused"].append(str(error))

    def write(self) -> None:
        """Write `<run>/logs/patches/<host>-<pid>.json` in one rename; does nothing outside a run.

        Not flushed to disk: it need only survive this process, and many workers write at once.

        Raises:
            PatchError: the file cannot be written.
        """
        run_dir = os.environ.get(RUN_DIR_ENV)
        if not run_dir:
            return
        host, pid = socket.gethostname(), os.getpid()
        path = record_folder(Path(run_dir)) / f"{host}-{pid}.json"
        beside = path.with_suffix(".part")
        with self._lock:
            self._data["missed"] = self._missed()
            data = {**self._data, "host": host, "pid": pid, "parent": os.getppid(), "program": _program()}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                beside.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
                beside.replace(path)
            except OSError as error:
                raise PatchError(
                    "the applied patches cannot be recorded", where=str(path), found=str(error)
                ) from error

    def _missed(self) -> list[str]:
        """Return target modules that are imported but never came through the hook."""
        missed = []
        for name in self._targets & sys.modules.keys() - self._seen:
            spec = getattr(sys.modules[name], "__spec__", None)
            if not getattr(spec, "_initializing", False):
                missed.append(name)
        return sorted(missed)

    def _after_fork(self) -> None:
        """Take a new lock: another thread of the parent may have held the old one."""
        self._lock = threading.RLock()

    def _at_exit(self) -> None:
        if self._missed() != self._data["missed"]:
            self.write()


@dataclass(frozen=True)
class Gathered:
    """What all processes of a run have applied.

    Attributes:
        series: digest of the series, None where no process recorded one.
        processes: how many processes recorded something.
        applied: per patch, its upstream's version and the fingerprint of each target.
        skipped: per patch, why it was not needed.
        drift: per patch that was let through, the fingerprints found.
        problems: one line each, naming host, pid and program; none in a sound run.
    """

    series: str | None
    processes: int
    applied: dict[str, Any]
    skipped: dict[str, str]
    drift: dict[str, Any]
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as the `patches` entry of `run.json`."""
        return {**asdict(self), "problems": list(self.problems)}


def record_folder(run_dir: Path) -> Path:
    """Return where the processes of a run leave their records."""
    return run_dir / "logs" / "patches"


def gather(run_dir: Path, *, plan: str | None = None, required: Collection[tuple[str, int]] = ()) -> Gathered:
    """Collate the records of all processes of a run.

    Processes import different modules and so apply different patches; what must agree is the plan they run and,
    for each patch, the fingerprints and versions at which it was applied or the reason why it was not.

    Args:
        run_dir: the run.
        plan: value of ``VERL_MUSA_PATCHES`` that the launcher set.
        required: (host, pid) of processes that must have a record, for example all that own a device.
    """
    records: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for path in sorted(record_folder(run_dir).glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            label = f"{record['host']}:{record['pid']} ({record['program']})"
            records[label] = record
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{path}: not a patch record: {type(error).__name__}: {error}")
    present = {(record["host"], record["pid"]) for record in records.values()}
    problems += [
        f"{host}:{pid}: applied no patch at all (its interpreter started without the hook)"
        for host, pid in sorted(set(required) - present)
    ]
    reference = digest_plan(plan) if plan is not None else _most_common(records, "plan")
    for label, record in records.items():
        problems += _own_problems(label, record, reference)
    applied, differing = _collate(records, "applied")
    skipped, differing_reasons = _collate(records, "skipped")
    problems += differing + differing_reasons
    problems += [
        f"{label}: did not apply {patch_id}, which others did: {record['skipped'][patch_id]}"
        for label, record in records.items()
        for patch_id in sorted(record["skipped"].keys() & applied.keys() - record["applied"].keys())
    ]
    drift: dict[str, Any] = {}
    for record in records.values():
        for patch_id, targets in record["drift"].items():
            drift.setdefault(patch_id, {}).update(targets)
    return Gathered(
        series=_most_common(records, "series"),
        processes=len(records),
        applied=applied,
        skipped={key: value for key, value in skipped.items() if key not in applied},
        drift=drift,
        problems=tuple(problems),
    )


def digest_plan(text: str) -> str:
    """Return the hash by which processes compare their plans."""
    from verl_musa.patching.loading import digest

    return digest(text.encode())


def _own_problems(label: str, record: Mapping[str, Any], plan: str | None) -> list[str]:
    problems = [f"{label}: refused: {message}" for message in record["refused"]]
    if record["plan"] != plan:
        problems.append(f"{label}: runs another plan: found {record['plan']}, expected {plan}")
    if record["missed"]:
        names = ", ".join(record["missed"])
        problems.append(f"{label}: imported without the hook, so unpatched: {names}")
    return problems


def _most_common(records: Mapping[str, Mapping[str, Any]], key: str) -> str | None:
    values = [str(record[key]) for record in records.values()]
    return max(sorted(set(values)), key=values.count, default=None)


def _collate(records: Mapping[str, Mapping[str, Any]], kind: str) -> tuple[dict[str, Any], list[str]]:
    """Merge one kind of entry over all processes; report each that differs from the first seen."""
    merged: dict[str, Any] = {}
    owner: dict[str, str] = {}
    problems: list[str] = []
    for label, record in records.items():
        for patch_id, entry in record[kind].items():
            if patch_id not in merged:
                merged[patch_id], owner[patch_id] = json.loads(json.dumps(entry)), label
            elif difference := _difference(merged[patch_id], entry):
                problems.append(
                    f"{label}: {patch_id} {kind} otherwise than in {owner[patch_id]}: {difference}"
                )
            elif isinstance(entry, dict):
                merged[patch_id]["targets"].update(entry["targets"])
    return merged, problems


def _difference(one: Any, other: Any) -> str | None:
    if not isinstance(one, dict):
        return None if one == other else f"{other!r}, there {one!r}"
    if one["version"] != other["version"]:
        return f"version {other['version']}, there {one['version']}"
    for target in one["targets"].keys() & other["targets"].keys():
        if one["targets"][target] != other["targets"][target]:
            return f"{target} is {other['targets'][target][:12]}, there {one['targets'][target][:12]}"
    return None


def _program() -> str:
    """Return the script's or module's name, without arguments (they may hold anything)."""
    arguments = sys.orig_argv[1:]
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        return arguments[1]
    return Path(arguments[0]).name if arguments and not arguments[0].startswith("-") else "python"
