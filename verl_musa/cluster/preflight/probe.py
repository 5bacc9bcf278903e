"""What preflight runs on a host: standard library only, Python 3.8 or newer, sent over stdin to ``python3 -``.

This file is the frame; ``probe_host``, ``probe_net``, ``probe_mesh`` and ``probe_data`` are its parts, which :mod:`program` joins with
it into one text. It prints one line: :data:`MARK` and a JSON object.

    {"began": s, "ended": s, "parts": {NAME: {"value": …} | {"error": text}}}

``began`` and ``ended`` are this host's clock in seconds since the epoch.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from typing import Any, Callable, Mapping

MARK = "@@verl-musa-probe@@"
LEAST_ALARM = 5
LARGEST = 1 << 22


def within(seconds: float, function: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """What ``function`` returns, and an empty text; or None, and why there is nothing. A call that hangs is left behind."""
    box: dict[str, Any] = {}

    def work() -> None:
        try:
            box["value"] = function(*arguments)
        except Exception as error:  # noqa: BLE001  (a fact that cannot be read must not hide the others)
            box["error"] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if "value" in box:
        return box["value"], ""
    return None, box.get("error") or f"no answer within {seconds:g} s"


def each_within(seconds: float, calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """All ``calls`` at once: name -> ``{"value": …}`` or ``{"error": text}``."""
    found: dict[str, Any] = {}

    def one(name: str, call: Callable[[], Any]) -> None:
        value, error = within(seconds, call)
        found[name] = {"error": error} if error else {"value": value}

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 1)
    return {name: found.get(name, {"error": f"no answer within {seconds:g} s"}) for name in calls}


def read_text(path: str) -> str | None:
    """The text of a file of the kernel; None where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(LARGEST).decode("utf-8", "replace").strip("\n")
    except OSError:
        return None


def read_number(path: str) -> int | None:
    """The number in a file of the kernel; None where there is none (``max``)."""
    text = (read_text(path) or "").strip()
    return int(text) if text.isdigit() else None


def command_of(pid: int) -> str:
    """The first words of a process's command line."""
    words = (read_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    return (words or (read_text(f"/proc/{pid}/comm") or "").strip() or "?")[:160]


def run_probe(parts: dict[str, Callable[[dict[str, Any]], Any]], parameters: dict[str, Any]) -> None:
    """Run the parts side by side, print what they found and leave, whatever still hangs."""
    began = time.time()
    # The end of a probe whose ssh is gone: nobody reads it any more.
    signal.alarm(max(LEAST_ALARM, int(parameters["seconds"]) + LEAST_ALARM))
    calls = {name: functools.partial(part, parameters) for name, part in parts.items()}
    found = each_within(parameters["seconds"], calls)
    text = json.dumps({"began": began, "ended": time.time(), "parts": found})
    line = ("\n" + MARK + text + "\n").encode()
    while line:
        line = line[os.write(1, line) :]
    os._exit(0)
