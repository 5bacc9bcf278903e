"""The device list: ``mthreads-ml-py`` first, then ``mthreads-gmi``, else none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from verl_musa.env import _gmi
from verl_musa.env.report import Device, Devices

TIMEOUT_SECONDS = 20.0
"""Longest wait for one tool; with a healthy driver each answers within a second."""

_TOOL = "mthreads-gmi"


class _NoAnswerError(Exception):
    """A source gave no device list; the text says why."""


def find_devices(timeout: float = TIMEOUT_SECONDS) -> Devices:
    """Ask each source in turn, for at most ``timeout`` seconds a call."""
    notes: list[str] = []
    for source, ask in (("mthreads-ml-py", _from_library), (_TOOL, _from_tool)):
        try:
            driver, devices = ask(timeout)
        except _NoAnswerError as error:
            notes.append(f"{source}: {error}")
        else:
            return Devices(source=source, devices=devices, driver=driver, notes=tuple(notes))
    return Devices(source="none", devices=None, notes=tuple(notes))


def _from_library(timeout: float) -> tuple[str | None, tuple[Device, ...]]:
    code, output, errors = _call([sys.executable, str(Path(__file__).with_name("_mtml_probe.py"))], timeout)
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if code != 0 or not isinstance(answer, dict):
        raise _NoAnswerError(f"its process ended with code {code}{_last_line(errors)}")
    if answer.get("missing"):
        raise _NoAnswerError("not installed")
    if "error" in answer:
        raise _NoAnswerError(str(answer["error"]).splitlines()[0])
    return answer["driver"], tuple(Device(**device) for device in answer["devices"])


def _from_tool(timeout: float) -> tuple[str | None, tuple[Device, ...]]:
    tool = shutil.which(_TOOL)
    if tool is None:
        raise _NoAnswerError("not on PATH")
    reasons: list[str] = []
    for arguments in ([], ["-q"]):
        code, output, errors = _call([tool, *arguments], timeout)
        if code != 0:
            raise _NoAnswerError(f"exit code {code}{_last_line(errors or output)}")
        try:
            reading = _gmi.parse(output)
        except _gmi.UnreadableError as error:
            reasons.append(str(error))
        else:
            return reading.driver, reading.devices
    raise _NoAnswerError("; with -q: ".join(reasons))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f" ({lines[-1][:200]})" if lines else ""


def _call(command: list[str], timeout: float) -> tuple[int, str, str]:
    """Exit code, output and errors of ``command``.

    Raises:
        _NoAnswerError: it did not start or did not end in time.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise _NoAnswerError(f"cannot be started: {error.strerror}") from error
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise _NoAnswerError(f"no answer within {timeout:g} s") from error
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # stuck inside the driver: not ours to wait for
                process.wait(timeout=2)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return process.returncode, output, errors
