"""Ctrl-C and its kin: the first one interrupts the work, later ones don't disturb the cleaning up."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any, Self

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedRunError(KeyboardInterrupt):
    """The user, or the system, asked the runner to stop."""


class Signals:
    """While entered, the first SIGINT, SIGTERM or SIGHUP raises InterruptedRunError; later ones print a line."""

    def __init__(self) -> None:
        self._held = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # nohup has hangups ignored, and means it. SIGINT is ignored in any script's background job, and means nothing.
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        heard = [number for number in CAUGHT if not (nohup and number == signal.SIGHUP)]
        self._before = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """From now on no signal interrupts."""
        self._held = True

    def listen(self) -> None:
        """A signal interrupts again."""
        self._held = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._held:
            sys.stderr.write("still ending the processes of this run, one moment\n")
            return
        self._held = True
        raise InterruptedRunError(f"interrupted by {signal.Signals(number).name}")
