"""The support matrix: every combination of trainer, rollout, model, algorithm and placement, and what became of it.

    nox -s matrix                     # runs every cell that can be run, then writes docs/matrix.md
    nox -s matrix -- -k vllm          # runs some, keeps the others' results
    python ci/matrix.py               # writes docs/matrix.md from the results again

A cell is a recipe with variants; its result is what a whole job of a few steps left in its run directory. Cells that are not run
carry the reason, as a fact that a reader can look up. Standard library only.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
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
        "versions": {name: versions[name] for name in ("verl", "torch", "sglang") if name in versions},
    }


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
    _write(TABLE, render(read_results()))
    print(f"wrote {TABLE.relative_to(ROOT)}")
