"""What a run expects of its workers, as the runner hands it over in the environment."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

EXPECT_ENV = "VERL_MUSA_EXPECT"
RUN_DIR_ENV = "VERL_MUSA_RUN_DIR"


class ExpectationError(RuntimeError):
    """A worker is not what the run asked for, or what it asked for cannot be read."""


@dataclass(frozen=True)
class Expectation:
    """What each worker of a run must find.

    Attributes:
        device: torch device type, e.g. ``musa``.
        backend: collective backend of that device, e.g. ``mccl``.
        simulated: whether the device is the simulator.
    """

    device: str
    backend: str
    simulated: bool


def expectation() -> Expectation | None:
    """Return what VERL_MUSA_EXPECT asks for, or None where no run asks for anything.

    Raises:
        ExpectationError: the variable is set but is not the JSON object of an Expectation.
    """
    text = os.environ.get(EXPECT_ENV)
    if not text:
        return None
    try:
        fields = json.loads(text)
        found = Expectation(fields["device"], fields["backend"], fields["simulated"])
    except (ValueError, KeyError, TypeError) as error:
        raise ExpectationError(
            f"{EXPECT_ENV}: found {text!r}; expected a JSON object with device, backend and simulated"
        ) from error
    if not (isinstance(found.device, str) and isinstance(found.backend, str)):
        raise ExpectationError(f"{EXPECT_ENV}: found {text!r}; expected text for device and backend")
    if not isinstance(found.simulated, bool):
        raise ExpectationError(f"{EXPECT_ENV}: found {text!r}; expected true or false for simulated")
    return found


def proof_dir() -> Path | None:
    """Return ``<run directory>/logs/proof``, made if needed, or None outside a run."""
    run_dir = os.environ.get(RUN_DIR_ENV)
    if not run_dir:
        return None
    folder = Path(run_dir) / "logs" / "proof"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def own_file(name: str, ending: str = "json") -> str:
    """Return ``<name>-<pid>-<host>.<ending>``: processes of different hosts write into one folder and may have one pid."""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    return f"{name}-{os.getpid()}-{host}.{ending}"


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` so that a reader sees the old content or the new, never a part of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
