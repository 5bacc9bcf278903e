"""Equality of formulas by math-verify, in processes that may hang, run out of memory or die without hurting the caller.

math-verify bounds itself with ``signal.alarm``, which works in the main thread only, and verl calls rewards from threads. Here the kernel
bounds each comparison: processor time and memory of a process that is ended and replaced.
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
import re
import sys
import threading
from pathlib import Path

from verl_musa.reward.child import Child, ChildDiedError, ChildError, ChildTimeoutError

PROCESSES = 4
"""Comparisons at once in one reward worker; each process is started when it is first needed."""

CPU_SECONDS = 3
"""Processor time of one comparison. Those of real answers take milliseconds."""

MEMORY_BYTES = 2 << 30
"""Address space of one process; sympy and its parser take 0.3 GiB of it."""

WALL_SECONDS = 90.0
"""Longest wait for one comparison, for a machine so busy that three seconds of processor time take that long."""

START_SECONDS = 180.0
"""Longest wait for a process to import sympy and compile its grammar."""

QUEUE_SECONDS = 600.0
"""Longest wait for a free process."""

MAX_LENGTH = 256
MAX_DEPTH = 12
_HUGE = re.compile(
    r"(?:\^|\*\*)\s*\{?\s*[+-]?\d{5,}"  # a power with an exponent of five digits
    r"|(?:\^|\*\*)\s*\{?[^{}^*]{0,40}(?:\^|\*\*)"  # a power of a power
    r"|\d{4,}\s*!|!\s*!"  # factorials
    r"|[A-Za-z]{24,}|\d\s+\d"  # no formula at all; and two numbers side by side, which the library adds
)


class NotInstalledError(ImportError):
    """math-verify is missing."""


def worth_asking(form: str) -> bool:
    """Whether a formula parser may see ``form`` at all: what it would choke on is told apart by its looks."""
    if not form or len(form) > MAX_LENGTH or _HUGE.search(form):
        return False
    depth = deepest = 0
    for character in form:
        if character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth -= 1
    return deepest <= MAX_DEPTH


class Comparer:
    """A pool of comparing processes, for any number of threads.

    Args:
        processes: as many at once at most.
        cpu_seconds: for one comparison.
        memory_bytes: for one process.
    """

    def __init__(
        self, processes: int = PROCESSES, cpu_seconds: int = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._limits = (cpu_seconds, memory_bytes)
        self._slots: queue.LifoQueue[Child | None] = queue.LifoQueue()
        for _ in range(processes):
            self._slots.put(None)  # a slot without a process yet

    def equal(self, truth: str, answer: str) -> bool | None:
        """Whether both formulas are equal; None where the limits ended the comparison.

        Raises:
            NotInstalledError: there is no math-verify.
            ChildError: the process cannot be started.
            queue.Empty: all processes were busy for too long.
        """
        child = self._slots.get(timeout=QUEUE_SECONDS)
        kept: Child | None = None
        try:
            child = child or self._start()
            try:
                found = child.ask([truth, answer], WALL_SECONDS)
            except (ChildTimeoutError, ChildDiedError):
                # By SIGXCPU when its time was up, by whatever when memory was. No answer may end a training.
                return None
            kept = child
        finally:
            self._slots.put(kept)
        equal = found.get("equal")
        return None if equal is None else bool(equal)

    def close(self) -> None:
        """End every process that is idle."""
        idle = []
        while not self._slots.empty():
            idle.append(self._slots.get_nowait())
        for child in idle:
            if child is not None:
                child.close()
            self._slots.put(None)

    def _start(self) -> Child:
        script = Path(__file__).with_name("_symbolic_child.py")
        command = [sys.executable, "-P", str(script), *map(str, self._limits)]
        # One thread each, and no patches of frameworks that are not imported there.
        environment = {name: value for name, value in os.environ.items() if name != "VERL_MUSA_PATCHES"}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
        try:
            return Child(command, environment, START_SECONDS)
        except ChildDiedError as error:
            if "No module named" in str(error):
                raise NotInstalledError(f"math-verify is not installed here: {error}") from error
            raise


_shared_lock = threading.Lock()


@functools.cache
def _make_shared() -> Comparer:
    comparer = Comparer()
    atexit.register(comparer.close)
    return comparer


def shared() -> Comparer:
    """The pool of this process."""
    with _shared_lock:
        return _make_shared()


__all__ = ["ChildError", "Comparer", "NotInstalledError", "shared", "worth_asking"]
