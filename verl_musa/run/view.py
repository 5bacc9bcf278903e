"""Showing a run that another process works on: what its supervisor tells, or what its record and metrics say."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console

from verl_musa.errors import RunError, VerlMusaError
from verl_musa.observe.display import Display
from verl_musa.observe.metrics import read_rows
from verl_musa.run.directory import RunDirectory
from verl_musa.run.events import EventReader, events_file, last_attempt
from verl_musa.run.record import GOING_ON, RunRecord, load_record
from verl_musa.run.report import print_summary
from verl_musa.run.signals import InterruptedRunError
from verl_musa.run.supervisor_state import sign_of

LOOK_S = 0.5
BEGIN_S = 120.0
"""Longest wait for a supervisor's first word."""
INTERRUPTED = 130
SUPERVISOR_GONE = 1


class Viewer:
    """Shows one run. Leaving it changes nothing about the run.

    Args:
        run: the run.
        display: where it is shown.
        quiet: no summary at the end.
        pause: waits between two looks.
    """

    def __init__(
        self, run: RunDirectory, display: Display, *, quiet: bool = False, pause: Callable[[float], None] = time.sleep
    ) -> None:  # fmt: skip
        self._run = run
        self._display = display
        self._quiet = quiet
        self._pause = pause

    def show(self) -> int:
        """Show the run until it ends, and return its exit code; 130 after an interrupt, with a word on how to come back."""
        try:
            if load_record(self._run.record).cluster is None:
                return self._show_record()
            return self._show_events()
        except (InterruptedRunError, KeyboardInterrupt):
            self._display.close()
            name = self._run.path.name
            sys.stderr.write(
                f"the run goes on without this view. Come back: verl-musa follow {name}; end it: verl-musa stop {name}\n"
            )
            return INTERRUPTED
        finally:
            self._display.close()

    def _show_events(self) -> int:
        path = events_file(self._run)
        reader = EventReader(path, last_attempt(path))
        self._display.note(f"run {self._run.path.name} in {self._run.path}")
        began = time.monotonic()
        while True:
            news = list(reader.new())
            since = self._attempt_began() if news else 0.0
            for event in news:
                if float(event.get("time", 0)) < since:
                    continue  # of an earlier supervisor: the run was resumed
                if event.get("kind") == "end":
                    return self._end(event)
                self._tell(event)
            sign = sign_of(self._run)
            if (sign is None or sign.over or not sign.alive) and time.monotonic() - began > (
                BEGIN_S if sign is None or sign.over else 2.0
            ):
                for event in reader.new():
                    if event.get("kind") == "end":
                        return self._end(event)
                return self._gone()
            self._pause(LOOK_S)

    def _attempt_began(self) -> float:
        """When the attempt that goes on was prepared, in seconds since the epoch; 0 where none goes on."""
        try:
            record = load_record(self._run.record)
        except VerlMusaError:
            return 0.0
        if record.status not in GOING_ON or record.attempt.number == 1:
            return 0.0
        return datetime.fromisoformat(record.attempt.started_at).timestamp()

    def _tell(self, event: Mapping[str, Any]) -> None:
        kind = event.get("kind")
        if kind == "note":
            self._display.note(str(event.get("text")))
        elif kind == "phase":
            self._display.phase(str(event.get("text")))
        elif kind == "step":
            total = event.get("total")
            self._display.step(
                int(event["step"]), total if isinstance(total, int) else None, dict(event["data"])
            )
        elif kind == "attempt":
            self._display.note(
                f"attempt {event.get('number')} on {', '.join(map(str, event.get('hosts', ())))}"
            )
        elif kind == "card":
            self._display.close()
            sys.stdout.write(str(event.get("text")))

    def _end(self, event: Mapping[str, Any]) -> int:
        self._display.close()
        if not self._quiet:
            print_summary(self._run, load_record(self._run.record))
        code = int(event.get("code", 1))
        if code:
            sys.stderr.write(f"verl-musa: {'' if code == INTERRUPTED else 'error: '}{event.get('error')}\n")
        return code

    def _gone(self) -> int:
        self._display.close()
        name, sign = self._run.path.name, sign_of(self._run)
        who = f"its supervisor (process {sign.pid} on {sign.host})" if sign else "its supervisor"
        sys.stderr.write(
            f"verl-musa: error: {who} has ended without a word; its job may still run.\n"
            f"  next step: end what is left with `verl-musa stop {name}`, then go on with `verl-musa resume {name}`;\n"
            f"             {self._run.logs / 'supervisor.log'} may say more\n"
        )
        return SUPERVISOR_GONE

    def _show_record(self) -> int:
        """A run on one host: its steps as they come, until its runner has written how it ended."""
        shown: set[int] = set()
        self._display.note(f"run {self._run.path.name} in {self._run.path}")
        while True:
            record = load_record(self._run.record)
            for step, data in self._rows().items():
                if step not in shown:
                    shown.add(step)
                    self._display.step(step, record.total_steps, data)
            if record.status not in GOING_ON:
                return self._ended(record)
            if not runner_alive(record):
                self._display.close()
                sys.stderr.write(
                    f"verl-musa: error: the runner of this run (process {record.attempt.runner.pid}) is gone\n"
                )
                return SUPERVISOR_GONE
            self._pause(LOOK_S)

    def _rows(self) -> dict[int, dict[str, Any]]:
        try:
            return read_rows(self._run.metrics)
        except RunError:
            return {}

    def _ended(self, record: RunRecord) -> int:
        self._display.close()
        if not self._quiet:
            print_summary(self._run, record, Console(highlight=False))
        if record.status == "succeeded":
            return 0
        sys.stderr.write(f"verl-musa: {record.status}: {record.exit_reason}\n")
        return INTERRUPTED if record.status == "interrupted" else 1


def runner_alive(record: RunRecord) -> bool:
    """Whether the runner of a run on one host still runs; taken for granted where it runs on another machine."""
    import platform

    from verl_musa.cluster.processes import same_process_runs

    runner = record.attempt.runner
    return record.host != platform.node() or same_process_runs(runner.pid, runner.started)
