"""The metrics of a run: verl's own file logger, one file an attempt, folded into one ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from verl_musa.errors import RunError
from verl_musa.fileio import write_atomic

Rows = dict[int, dict[str, Any]]
"""Step -> verl's metric names and values. Step 0 is the validation before training."""

SCORE = "critic/score/mean"
HELD_EACH_STEP = {
    "rollout_probs_diff_max": "training/rollout_probs_diff_max",
    "log_ppl_abs_diff_max": "rollout_corr/log_ppl_abs_diff",
}
"""Field of the recipe's ``accept`` block -> the metric that it bounds from above at every step: how far the rollout's and
the trainer's probabilities of the same tokens are apart."""
TRAINED = "training/global_step"


def read_rows(path: Path) -> Rows:
    """Read what verl's file logger has written so far: lines of ``{"step": N, "data": {...}}``.

    Several lines of one step are joined, later values win. A last line without its newline is still being
    written, or was torn by a crash, and is left out. A missing file holds no rows.

    Raises:
        RunError: a whole line that is no such object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    rows: Rows = {}
    whole, _, _ = text.rpartition("\n")
    for number, line in enumerate(whole.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            step, data = int(item["step"]), dict(item["data"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                "a damaged line in a metrics file",
                where=f"{path}:{number}",
                found=line[:200],
                expected='{"step": N, "data": {...}}, as verl\'s file logger writes it',
                fix="the file was changed by hand or the disk is damaged; remove the line to go on without it",
            ) from error
        rows.setdefault(step, {}).update(data)
    return rows


def fold(attempts: Iterable[tuple[int, Rows]]) -> Rows:
    """Join the rows of a run's attempts.

    Args:
        attempts: in order, each with the step that it resumed from (0 for a start from scratch) and its rows.

    Returns:
        Rows in which each attempt replaced what came after the step it resumed from. What it logged for that very
        step or earlier (verl validates again before it trains on) does not replace what is known already.
    """
    rows: Rows = {}
    for resumed_from, new in attempts:
        rows = {step: data for step, data in rows.items() if resumed_from > 0 and step <= resumed_from}
        for step, data in new.items():
            if step > resumed_from or step not in rows:
                rows[step] = data
    return dict(sorted(rows.items()))


def write_rows(path: Path, rows: Rows) -> None:
    """Write ``metrics.jsonl`` whole, in verl's own form, one object a step."""
    lines = (json.dumps({"step": step, "data": data}, ensure_ascii=False) for step, data in rows.items())
    write_atomic(path, "".join(f"{line}\n" for line in lines))


def number(data: dict[str, Any], *names: str) -> float | None:
    """The first of ``names`` that has a finite number in ``data``; a name that starts with ``/`` fits any ending.

    Of several keys with one ending the largest value counts.
    """
    for name in names:
        keys = [key for key in data if key.endswith(name)] if name.startswith("/") else [name]
        values = [float(data[key]) for key in keys if isinstance(data.get(key), int | float)]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            return max(finite)
    return None


def series(rows: Rows, *names: str) -> list[float]:
    """The values of a metric over the steps that have it."""
    found = (number(data, *names) for data in rows.values())
    return [value for value in found if value is not None]


def training_rows(rows: Rows) -> Rows:
    """The rows of training steps (without those that only hold a validation)."""
    return {step: data for step, data in rows.items() if step > 0 and (SCORE in data or TRAINED in data)}


def tokens_per_second(data: dict[str, Any]) -> float | None:
    """Tokens a second over all devices; verl's own ``perf/throughput`` is per device."""
    tokens, seconds = number(data, "perf/total_num_tokens"), number(data, "perf/time_per_step")
    return tokens / seconds if tokens is not None and seconds else None


def device_memory(data: dict[str, Any]) -> float | None:
    """Highest allocated device memory in GiB, as torch counts it (verl names it ``..._gb``)."""
    return number(data, "/perf/max_memory_allocated_gb", "perf/max_memory_allocated_gb")


def validation_scores(data: dict[str, Any]) -> dict[str, float]:
    """The mean validation scores in a row: verl's ``val-core/<data source>/<what>/mean@N``."""
    names = [name for name in data if name.startswith("val-core/") and "/mean@" in name]
    found = {name: number(data, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return math.fsum(values) / len(values) if values else None
