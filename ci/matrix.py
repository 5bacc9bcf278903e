"""The support matrix: every combination of trainer, rollout, model, algorithm and placement, and what became of it.

    nox -s matrix                     # runs every cell that can be run, then writes docs/matrix.md
    nox -s matrix -- -k vllm          # runs some, keeps the others' results
    python ci/matrix.py               # writes docs/matrix.md from the results again
    python ci/matrix.py RUN ...       # takes runs that ended already as results of their cells

A cell is a recipe with variants; its result is what a whole job of a few steps left in its run directory. Cells that are not run
carry the reason, as a fact that a reader can look up. Standard library only.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "matrix.json"
TABLE = ROOT / "docs" / "matrix.md"

AXES = {
    "trainer": ("FSDP2", "Megatron"),
    "rollout": ("SGLang", "vLLM"),
    "model": ("dense", "MoE"),
    "algorithm": ("GRPO", "PPO"),
    "placement": ("colocated", "split"),
}
BASES = {
    ("dense", "GRPO"): ("qwen3-tiny-dense", "FSDP2"),
    ("MoE", "GRPO"): ("qwen3-tiny-moe", "Megatron"),
    ("dense", "PPO"): ("qwen3-tiny-ppo", "FSDP2"),
    ("MoE", "PPO"): ("qwen3-tiny-moe", "Megatron"),
}
"""(model, algorithm) -> the recipe, and the trainer that it has by itself."""

STEPS = 3
"""Steps of a cell: the second one shows that the first one's weights reached the rollout."""

SHORT = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
)
"""What a cell's run changes in its recipe."""

DIFF_LIMIT = 1e-5
"""Largest allowed ``rollout_corr/log_ppl_abs_diff`` of float32: how far trainer and rollout are apart in the mean log-probability
of a response, on average over the responses."""


@dataclass(frozen=True)
class Cell:
    """One combination.

    Attributes:
        trainer, rollout, model, algorithm, placement: its place on the axes.
        recipe: what is run, ``NAME@first+second``.
        reason: why it is not run; empty where it is.
    """

    trainer: str
    rollout: str
    model: str
    algorithm: str
    placement: str
    recipe: str
    reason: str = ""

    @property
    def id(self) -> str:
        """Its place on the axes, as one text."""
        return f"{self.trainer}-{self.rollout}-{self.model}-{self.algorithm}-{self.placement}".lower()


def _variants(trainer: str, rollout: str, model: str, algorithm: str, placement: str) -> list[str]:
    """The variants that turn the base recipe into the cell, in the order in which they are laid over it."""
    _, own = BASES[model, algorithm]
    chosen = []
    if (model, algorithm) == ("MoE", "PPO"):
        chosen.append("ppo")
    if trainer != own:
        chosen.append({"Megatron": "megatron-tp2", "FSDP2": "fsdp"}[trainer])
    if rollout == "vLLM":
        chosen.append("vllm")
    if placement == "split":
        chosen.append("split")
    return chosen


def _reason(recipe: str, variants: list[str]) -> str:
    """Why a cell is not run: a variant that nobody has written yet."""
    folder = ROOT / "recipes" / recipe / "variants"
    lacking = [name for name in variants if not (folder / f"{name}.yaml").is_file()]
    return f"not done: {recipe} has no variant {' and '.join(lacking)}" if lacking else ""


def cells() -> list[Cell]:
    """All combinations, in the order of the axes."""
    found = []
    for place in itertools.product(*AXES.values()):
        recipe, _ = BASES[place[2], place[3]]
        variants = _variants(*place)
        named = f"{recipe}@{'+'.join(variants)}" if variants else recipe
        trainer, rollout, model, algorithm, placement = place
        found.append(Cell(trainer, rollout, model, algorithm, placement, named, _reason(recipe, variants)))
    return found


def result_of(run_dir: Path, exit_code: int, seconds: float) -> dict[str, Any]:
    """What a run left behind, as a cell's result."""
    record = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    rows = [json.loads(line)["data"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    diffs = [
        row["training/rollout_probs_diff_max"] for row in rows if "training/rollout_probs_diff_max" in row
    ]
    ppl = [row["rollout_corr/log_ppl_abs_diff"] for row in rows if "rollout_corr/log_ppl_abs_diff" in row]
    times = [row["timing_s/step"] for row in rows if "timing_s/step" in row]
    versions = record["versions"]
    return {
        "status": "runs" if exit_code == 0 else "fails",
        "exit_code": exit_code,
        "reason": str(record.get("exit_reason") or "").splitlines()[0] if exit_code else "",
        "steps": len(diffs),
        "log_ppl_diff_max": max(ppl, default=None),
        "probs_diff_max": max(diffs, default=None),
        "step_s": min(times, default=None),
        "wall_s": round(seconds),
        "proven": bool(record["device"]["proven"]),
        "date": record["created_at"][:10],
        "commit": (record["git"] or {}).get("commit", "")[:12],
        "versions": {name: versions[name] for name in ("verl", "torch", "sglang") if name in versions},
    }


def run_result(run_dir: Path) -> tuple[Cell, dict[str, Any]]:
    """The cell that a run which has ended belongs to, and its result.

    Raises:
        ValueError: it goes on, or is no run of a cell: another recipe, other settings, too few steps.
    """
    record = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    named = "@".join(filter(None, [record["recipe"]["name"], "+".join(record["recipe"]["variants"])]))
    found = [cell for cell in cells() if not cell.reason and cell.recipe == named]
    if not found:
        raise ValueError(f"{run_dir}: {named} is no cell of the matrix")
    changed = {text.partition("=")[0] for text in record["sets"]} - {text.partition("=")[0] for text in SHORT}
    if changed:
        raise ValueError(
            f"{run_dir}: the run changed {', '.join(sorted(changed))}, so it is not the cell's own"
        )
    if record["status"] not in {"succeeded", "failed"}:
        raise ValueError(f"{run_dir}: the run is {record['status']}, expected one that succeeded or failed")
    took = datetime.fromisoformat(record["ended_at"]) - datetime.fromisoformat(record["created_at"])
    result = result_of(run_dir, 0 if record["status"] == "succeeded" else 1, took.total_seconds())
    if result["status"] == "runs" and (problem := shortfall(result)):
        raise ValueError(f"{run_dir}: {problem}")
    return found[0], result


def shortfall(result: dict[str, Any]) -> str:
    """What a run that ended well lacks to count as a cell that runs; empty for nothing."""
    if not result["proven"]:
        return "its workers did not prove their device"
    if result["steps"] < STEPS:
        return f"{result['steps']} steps, expected {STEPS} or more"
    if result["log_ppl_diff_max"] is None or result["log_ppl_diff_max"] > DIFF_LIMIT:
        return f"log_ppl_abs_diff {result['log_ppl_diff_max']}, expected at most {DIFF_LIMIT:.0e}"
    return ""


def read_results(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Cell id -> result, of all cells that were ever run."""
    if not path.is_file():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def keep_result(cell: Cell, result: dict[str, Any], path: Path = RESULTS) -> None:
    """Put one result among the others, atomically."""
    results = {**read_results(path), cell.id: result}
    known = {known.id for known in cells()}
    kept = {name: results[name] for name in sorted(results) if name in known}
    _write(path, json.dumps(kept, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _row(cell: Cell, result: dict[str, Any] | None) -> str:
    place = f"{cell.trainer} | {cell.rollout} | {cell.model} | {cell.algorithm} | {cell.placement}"
    if cell.reason:
        return f"| {place} | - | | | | | {cell.reason} |"
    if result is None:
        return f"| {place} | ? | | | | | not run yet: `{cell.recipe}` |"
    if result["status"] != "runs":
        return f"| {place} | **fails** | | | | {result['wall_s']} | `{cell.recipe}`: {result['reason']} |"
    return (
        f"| {place} | runs | {result['log_ppl_diff_max']:.1e} | {result['probs_diff_max']:.1e} | {result['step_s']:.1f} | {result['wall_s']} "
        f"| `{cell.recipe}` |"
    )


def render(results: dict[str, dict[str, Any]]) -> str:
    """The page, from the results alone."""
    every = cells()
    run = sum(1 for cell in every if not cell.reason and results.get(cell.id, {}).get("status") == "runs")
    dates = sorted({result["date"] for result in results.values()})
    head = [
        "# Support matrix",
        "",
        "Written by `nox -s matrix` from the results of the runs (docs/matrix.json): do not edit it.",
        "",
        f"Each cell is a whole job of {STEPS} steps on simulated `musa` devices, on one machine without a GPU: real verl, real Ray and the",
        "engines named, float32. *runs* means: the run succeeded, its workers proved their device, and trainer and rollout agreed about the",
        f"sampled tokens at every step: veRL's `rollout_corr/log_ppl_abs_diff` at most {DIFF_LIMIT:.0e} (first figure, the largest of the steps;",
        "the second is the largest difference of one token's probability). Nothing here ran on Moore Threads hardware.",
        "",
        f"{run} of {len(every)} cells run; measured {' to '.join(dict.fromkeys((dates[0], dates[-1]))) if dates else 'never'}.",
        "",
        "| trainer | rollout | model | algorithm | placement | result | log-prob difference | probability difference | s a step | s in all | recipe, or reason |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_row(cell, results.get(cell.id)) for cell in every)]) + "\n"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        keep_result(*run_result(Path(argument)))
    _write(TABLE, render(read_results()))
    print(f"wrote {TABLE.relative_to(ROOT)}")
