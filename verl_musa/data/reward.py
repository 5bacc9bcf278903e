"""Checks of the reward function: it is there, and it scores the recipe's own rows, in a process of its own."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from verl_musa.checks import Check, Finding, fail, ok, unknown
from verl_musa.data.parquet import sample_rows
from verl_musa.data.subject import Subject

PROBE_SECONDS = 60.0
"""Longest time for importing the file and scoring every sample."""

SAMPLES = 6
"""Rows that are scored: the first of each data_source first, then the next ones."""

_PATH = "reward.custom_reward_function.path"
_NAME = "reward.custom_reward_function.name"
_WRONG_ANSWERS = ("", "This is not an answer.")


def check_file(subject: Subject) -> Finding:
    """The file parses and defines the function."""
    file = _file(subject)
    if file is None:
        return unknown(
            "the recipe names no reward function; verl picks one by data_source when the job runs",
            "add a 'reward' section to recipe.yaml",
        )
    name = str(subject.select(_NAME))
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except OSError as error:
        return fail(
            f"cannot read {file}: {error.strerror}",
            "correct reward.file in recipe.yaml",
            subject.where(_PATH),
        )
    except SyntaxError as error:
        return fail(
            f"syntax error: {error.msg}",
            "correct the line",
            f"{file}:{error.lineno}" if error.lineno else str(file),
        )
    except ValueError as error:
        return fail(f"not Python source: {error}", "correct the file", str(file))
    if name not in _top_level_names(tree):
        return fail(
            f"no function {name!r} in it; it defines {', '.join(sorted(_top_level_names(tree))) or 'nothing'}",
            f"define {name}(data_source, solution_str, ground_truth, extra_info=None, **kwargs)",
            str(file),
        )
    return ok(f"{file.name} defines {name}")


def _file(subject: Subject) -> Path | None:
    value = subject.select(_PATH)
    return Path(str(value)) if value else None


def _top_level_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def check_scores(subject: Subject) -> Finding:
    """The function returns a finite number for right and wrong answers to the recipe's first rows, in bounded time."""
    file = _file(subject)
    if file is None or not file.is_file():
        return unknown("no reward function to call (see reward.file)")
    rows = _rows(subject)
    if not rows:
        files = subject.files("train")
        pending = subject.not_made_yet(files[0]) if files else None
        return pending or unknown("no readable rows to score (see data.train.files)")
    samples = [sample for row in rows for sample in _samples(row, subject)]
    if not samples:
        return unknown("no row has a data_source and a ground_truth (see data.train.rows)")
    judged = bool(subject.select("reward.reward_model.enable"))
    job = {
        "file": str(file),
        "reward_model": judged,
        "function": str(subject.select(_NAME)),
        "kwargs": subject.select("reward.custom_reward_function.reward_kwargs", {}),
        "samples": samples,
    }
    result = probe(job, PROBE_SECONDS)
    if "error" in result:
        return _failure(file, result["error"], subject)
    scores = result["scores"]
    return ok(
        f"{len(scores)} calls on {len(rows)} rows, scores from {min(scores):g} to {max(scores):g}"
        + (", with a stand-in for the reward model" if judged else "")
    )


def _rows(subject: Subject) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in subject.files("train"):
        rows += sample_rows(file, 200) or []
    key = str(subject.select("data.reward_fn_key", "data_source"))
    firsts: dict[Any, dict[str, Any]] = {}
    for row in rows:
        firsts.setdefault(str(row.get(key)), row)
    picked = [*firsts.values(), *(row for row in rows if all(row is not first for first in firsts.values()))]
    return picked[:SAMPLES]


def _samples(row: dict[str, Any], subject: Subject) -> list[dict[str, Any]]:
    """The calls verl would make for ``row`` with two wrong answers and, as text, the ground truth itself."""
    key = str(subject.select("data.reward_fn_key", "data_source"))
    reward_model = row.get("reward_model")
    if not isinstance(reward_model, dict) or not row.get(key) or reward_model.get("ground_truth") is None:
        return []
    truth = _plain(reward_model["ground_truth"])
    # verl adds these two to extra_info before it calls the function.
    extra = {**(_plain(row.get("extra_info")) or {}), "num_turns": None, "rollout_reward_scores": {}}
    return [
        {"data_source": row[key], "solution_str": answer, "ground_truth": truth, "extra_info": extra}
        for answer in (*_WRONG_ANSWERS, str(truth))
    ]


def _plain(value: Any) -> Any:
    """``value`` as JSON can carry it; what it cannot (bytes, dates) becomes its text."""
    return json.loads(json.dumps(value, default=str))


def _failure(file: Path, error: dict[str, Any], subject: Subject) -> Finding:
    sample = error.get("sample") or {}
    called = (
        f" for data_source {sample['data_source']!r}, solution_str {sample['solution_str']!r}, "
        f"ground_truth {sample['ground_truth']!r}"
        if sample
        else " on import"
    )
    where = f"{file}:{error['line']}" if error.get("line") else str(file)
    name = subject.select(_NAME)
    return fail(f"{name}: {error['message']}{called}", "make it return a finite number for any text", where)


def probe(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Run ``_probe.py`` on ``job`` for at most ``seconds`` and return its result.

    A process that ends any other way than with a result is reported as an ``error`` too.
    """
    script = Path(__file__).with_name("_probe.py")
    with tempfile.TemporaryDirectory(prefix="verl-musa-reward-") as scratch:
        job_file, result_file = Path(scratch, "job.json"), Path(scratch, "result.json")
        job_file.write_text(json.dumps({**job, "seconds": seconds}), encoding="utf-8")
        # -P as verl does it: the recipe folder is not on the import path of its reward function.
        command = [sys.executable, "-P", str(script), str(job_file), str(result_file)]
        process = subprocess.Popen(
            command,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            _, errors = process.communicate(timeout=seconds + 10)
        except subprocess.TimeoutExpired:
            errors = ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
            if process.stderr is not None:
                process.stderr.close()
        if result_file.is_file():
            result: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
            return result
        return {
            "error": _no_result(
                job["file"], Path(f"{result_file}.stack"), process.returncode, errors, seconds
            )
        }


def _no_result(file: str, stack: Path, code: int, errors: str, seconds: float) -> dict[str, Any]:
    trace = stack.read_text(encoding="utf-8", errors="replace") if stack.is_file() else ""
    lines = re.findall(rf'File "{re.escape(file)}", line (\d+)', trace)
    line = int(lines[0]) if lines else None  # faulthandler puts the innermost frame first
    if trace.startswith("Timeout"):
        return {"message": f"did not return within {seconds:g} s", "line": line}
    last = errors.strip().splitlines()[-1:] or ["it printed nothing"]
    return {"message": f"ended its process with code {code}: {last[0]}", "line": line}


CHECKS = (
    Check("reward.file", "the reward function's file", check_file),
    Check("reward.scores", "the reward function on the first rows, in its own process", check_scores),
)
