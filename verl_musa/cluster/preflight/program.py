"""The probe as one text: its parts joined, its parameters behind, ready for ``python3 -``; and its answer, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from verl_musa.cluster.preflight.probe import MARK

ARGV = ("python3", "-I", "-S", "-")
"""Isolated: neither the user's site-packages nor PYTHON* variables change what the probe is."""

FACTS = {"host": "probe_host", "site": "probe_host", "device": "probe_host", "net": "probe_net"}
MESH = {"mesh": "probe_mesh"}
DATA = {"data": "probe_data"}


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")


@cache
def _joined(modules: tuple[str, ...]) -> str:
    """The modules' texts in one: what they import from each other is in the same text anyway."""
    dropped = ("from __future__ import", "from verl_musa.")
    lines = [
        line for module in modules for line in _file(module).splitlines() if not line.startswith(dropped)
    ]
    return "\n".join(["from __future__ import annotations", *lines, ""])


def asked_of_site() -> str:
    """The program that the site's Python is given."""
    return _file("probe_site")


def probe_program(parts: Mapping[str, str], parameters: Mapping[str, Any]) -> bytes:
    """The text that runs ``parts`` (name -> module; the function is ``NAME_part``) with ``parameters``.

    The parameters travel as a quoted JSON text: whatever is in them, they are data to the interpreter.
    """
    modules = ("probe", *dict.fromkeys(parts.values()))
    functions = "{" + ", ".join(f'"{name}": {name}_part' for name in parts) + "}"
    return f"{_joined(modules)}\nrun_probe({functions}, json.loads({json.dumps(parameters)!a}))\n".encode(
        "ascii", "backslashreplace"
    )


def read_answer(stdout: bytes) -> dict[str, Any] | None:
    """What a probe printed, whatever a login message put around it; None where it printed nothing that can be read."""
    lines: Sequence[bytes] = [line for line in stdout.split(b"\n") if line.startswith(MARK.encode())]
    if not lines:
        return None
    try:
        value = json.loads(lines[-1][len(MARK) :])
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("parts"), dict) else None
