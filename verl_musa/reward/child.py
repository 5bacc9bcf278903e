"""A process of one's own that answers questions, and that can be ended at any moment.

Requests and answers are lines of JSON over pipes. It takes the place of ``concurrent.futures.ProcessPoolExecutor``, which cannot end a
worker that hangs, hands it pickles, and imports the caller's ``__main__`` into it: inside a Ray worker that is Ray itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

READY = {"ready": True}
"""First line of a child, once it can take requests."""

_READ_BYTES = 1 << 16
_LAST_WORDS = 4000


class ChildError(Exception):
    """The child gave no answer."""


class ChildTimeoutError(ChildError):
    """It did not answer in time, and was ended."""


class ChildDiedError(ChildError):
    """It ended on its own.

    Attributes:
        code: its exit code; negative for a signal.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Child:
    """One process that takes requests, one at a time. Not for use by two threads at once.

    Args:
        command: started without a shell, in a session of its own; it must print :data:`READY` as its first line.
        environment: its whole environment.
        start_seconds: longest wait for that line.

    Raises:
        ChildError: it did not become ready.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], start_seconds: float) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
            start_new_session=True,
        )
        self._buffer = bytearray()
        self._said = ""
        try:
            self._expect_ready(start_seconds)
        except BaseException:
            self.close()
            raise

    def _expect_ready(self, seconds: float) -> None:
        first = self._read(seconds)
        if first != READY:
            raise ChildError(str(first.get("error", first)))

    def ask(self, request: Any, seconds: float) -> dict[str, Any]:
        """Send ``request`` and return the answer. After an error the child is gone.

        Raises:
            ChildTimeoutError: no answer within ``seconds``.
            ChildDiedError: it ended instead.
        """
        requests = self._process.stdin
        if requests is None:
            raise ChildError("the child has no standard input")
        try:
            requests.write(json.dumps(request).encode() + b"\n")
            requests.flush()
            return self._read(seconds)
        except (BrokenPipeError, ValueError) as error:  # ValueError: the pipe is closed, or no JSON came back
            self.close()
            raise self._died() from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process and its children, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._said = self.last_words()
        self._errors.close()

    def _read(self, seconds: float) -> dict[str, Any]:
        """The next line as JSON."""
        stream = self._process.stdout
        if stream is None:
            raise ChildError("the child has no standard output")
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ChildTimeoutError(f"no answer within {seconds:g} s")
                part = os.read(stream.fileno(), _READ_BYTES)
                if not part:
                    raise self._died()
                self._buffer += part
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self) -> ChildDiedError:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it closed its pipe and lives on
            self.close()
            code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ChildDiedError(f"it ended with {how}: {self.last_words() or 'it printed nothing'}", code)

    def last_words(self) -> str:
        """The last line that it wrote to its standard error."""
        if self._errors.closed:
            return self._said
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _LAST_WORDS))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
