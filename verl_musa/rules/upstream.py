"""What verl's own dataclasses and ``validate_config`` say, asked in one bounded process for any number of recipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from verl_musa.checks import Result, Status
from verl_musa.recipe import Override, Resolved

CHECK = "verl.validate"
LOOKS_AT = "verl's own dataclasses and validate_config"
LIMIT_S = 300.0
_JOB = Path(__file__).with_name("_verl_job.py")
_NAME = re.compile(r"\b[A-Za-z_]\w*(?:\.\w+)+\b|\b[A-Za-z]+_\w+\b|(?<=[`'\"])\w+(?=[`'\"])")
"""What may be a key in a message: a dotted name, one with an underscore, a word in quotes."""


def ask_verl(recipes: Sequence[Resolved], *, limit_s: float = LIMIT_S) -> list[Result]:
    """One result for each of ``recipes``; UNKNOWN where verl could not be asked."""
    if not recipes:
        return []
    found = _run([one.config for one in recipes], limit_s)
    if isinstance(found, str):
        return [_unknown(found) for _ in recipes]
    return [_result(one, problems) for one, problems in zip(recipes, found, strict=True)]


def _run(configs: Sequence[object], limit_s: float) -> list[list[dict[str, str]]] | str:
    """What the job says; text where it could not say anything."""
    with tempfile.TemporaryDirectory(prefix="verl-musa-check-") as folder:
        job, result = Path(folder, "job.json"), Path(folder, "result.json")
        job.write_text(json.dumps(configs), encoding="utf-8")
        # The platform is of no interest here; verl would look for a device.
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith(("VERL_", "SGLANG_"))
        }
        try:
            done = subprocess.run(
                [sys.executable, str(_JOB), str(job), str(result)],
                capture_output=True, text=True, timeout=limit_s, check=False, env={**environment, "VERL_LOGGING_LEVEL": "ERROR"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"verl did not answer within {limit_s:g} s"
        if done.returncode or not result.is_file():
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            return f"the process ended with {done.returncode}: {last}"
        found: list[list[dict[str, str]]] = json.loads(result.read_text(encoding="utf-8"))
        return found


def _unknown(reason: str) -> Result:
    return Result(
        check=CHECK,
        looks_at=LOOKS_AT,
        status=Status.UNKNOWN,
        evidence=reason,
        fix="run it where verl is installed",
    )


def _result(resolved: Resolved, problems: Sequence[dict[str, str]]) -> Result:
    if not problems:
        return Result(check=CHECK, looks_at=LOOKS_AT, status=Status.OK, evidence="nothing against it")
    first, *others = problems
    culprit = _culprit(resolved, first["part"], first["message"])
    more = f" (and {len(others)} more)" if others else ""
    return Result(
        check=CHECK,
        looks_at=LOOKS_AT,
        status=Status.FAIL,
        evidence=f"{first['part']}: {first['message']}{more}",
        fix=f"correct {culprit.path}" if culprit else "correct the option that the message names",
        where=culprit.origin if culprit else str(resolved.recipe.folder / "config.yaml"),
    )


def _culprit(resolved: Resolved, part: str, message: str) -> Override | None:
    """The override that ``message`` names: by the last part of its key, best within ``part``."""
    last = {word.rpartition(".")[2] for word in _NAME.findall(message)}
    fitting = [one for one in resolved.overrides if one.path.rpartition(".")[2] in last]
    inside = [one for one in fitting if one.path.startswith(part)]
    return next(iter(inside or fitting), None)
