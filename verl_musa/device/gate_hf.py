"""The gate's side of its Hugging Face reference process (gate_reference.py)."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, Self

import psutil

SCRIPT = Path(__file__).with_name("gate_reference.py")
KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "VERL_MUSA_RUN_ID", "OMP_NUM_THREADS", "HF_HOME")
MEMORY_SHARE = 0.5
"""Share of the host's free memory that the reference may take."""


class ReferenceFailedError(RuntimeError):
    """The reference gave no answer; the message says why."""


def needed_bytes(folder: Path, *, largest: int = 4) -> int:
    """Memory of the model in float32 by the sizes of its weight files, which hold two bytes a number unless config.json
    says float32.
    """  # noqa: D205
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    stored = 4 if "32" in str(config.get("dtype") or config.get("torch_dtype") or "") else 2
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) * largest // stored


def environment() -> dict[str, str]:
    """A few harmless variables only: no plugin, no patch series and no device reaches the reference."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }


class Reference:
    """Starts the process; :meth:`ask` waits for its answer. A context manager: leaving it ends the process.

    Args:
        folder: the model folder.
        trust: whether code in the folder may be run.
        override: entries of the model's config that the recipe changes.
        log: where its standard error goes.
    """

    def __init__(self, folder: Path, *, trust: bool, override: dict[str, Any], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(SCRIPT), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=environment(),
            )
        self._replies: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        self._send({"trust": trust, "override": override})

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._replies.put(line)
        self._replies.put("")

    def _send(self, request: dict[str, Any]) -> None:
        if self._process.stdin is None:
            raise ReferenceFailedError("the reference process has no input")
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ReferenceFailedError(f"the reference process ended: see {self._log}") from error

    def begin(self, op: str, **arguments: Any) -> None:
        """Send a request; :meth:`result` returns its answer, in order."""
        self._send({"op": op, **arguments})

    def result(self, *, timeout_s: float) -> Any:
        """The answer to the oldest request.

        Raises:
            ReferenceFailedError: it failed, took too long, or the process ended.
        """
        try:
            line = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            raise ReferenceFailedError(
                f"the reference did not answer within {timeout_s:.0f} s: see {self._log}"
            ) from None
        if not line:
            raise ReferenceFailedError(f"the reference process ended: see {self._log}")
        reply = json.loads(line)
        if "error" in reply:
            raise ReferenceFailedError(str(reply["error"]))
        return reply["result"]

    def ask(self, op: str, *, timeout_s: float, **arguments: Any) -> Any:
        """Send a request and wait for its answer."""
        self.begin(op, **arguments)
        return self.result(timeout_s=timeout_s)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it may have ended already, with a request unread
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)
        self._reader.join(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def too_large(folder: Path) -> str:
    """Why the model does not fit beside the job; empty where it does."""
    needed, free = needed_bytes(folder), psutil.virtual_memory().available
    if needed <= MEMORY_SHARE * free:
        return ""
    return (
        f"the model takes {needed / 2**30:.0f} GiB in float32, {free / 2**30:.0f} GiB of host memory are free"
    )
