"""What the patch series costs a training step, as a table: whole runs with it and with only what the recipe needs.

    python ci/bench/patch_step_time.py [--recipe qwen3-tiny-dense] [--steps 12] [--pairs 2] --runs-dir DIR

Runs alternate (all, needed, all, needed), so that a machine that gets busier slows both. Every run has the recipe's own
seed, and so does the same work. Steps before FIRST_STEP warm up. Exit code 1: the medians differ by more than LIMIT.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_musa.patching import load_series
from verl_musa.run.patches import OFF_ENV

LIMIT = 0.02
FIRST_STEP = 3
KEY = "timing_s/step"
# Weights go through host memory on the simulator; the tiny recipe works without any other patch.
NEEDED = ("sglang-reduce-host-tensors",)
RUN_LIMIT_S = 1800


def step_times(run: Path) -> list[float]:
    """Return the seconds of each step from FIRST_STEP on, in order."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    times = [(row["step"], row.get("data", row)) for row in rows]
    return [float(data[KEY]) for step, data in times if step >= FIRST_STEP and KEY in data]


def train(recipe: str, steps: int, runs_dir: Path, off: Sequence[str]) -> Path:
    """Run the recipe without the patches ``off`` and return its run directory.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    before = set(runs_dir.glob("*/*/run.json"))
    script = Path(sys.executable).with_name("verl-musa")
    command = [str(script), "run", recipe, "--runs-dir", str(runs_dir), "--no-gate", "--set"]
    subprocess.run(
        [*command, f"trainer.total_training_steps={steps}"],
        env={**os.environ, OFF_ENV: ",".join(off)},
        check=True,
        timeout=RUN_LIMIT_S,
    )
    (made,) = set(runs_dir.glob("*/*/run.json")) - before
    recorded = json.loads(made.read_text(encoding="utf-8"))["patches"]["off"]
    if recorded != sorted(off):
        raise SystemExit(f"{made}: left out {recorded}, expected {sorted(off)}")
    return made.parent


def main() -> int:
    """Run, print the table, and say whether the limit holds."""
    parser = argparse.ArgumentParser(description="Cost of the patch series in a training step.")
    parser.add_argument("--recipe", default="qwen3-tiny-dense")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--needed", nargs="*", default=NEEDED)
    parser.add_argument("--runs-dir", type=Path, required=True)
    options = parser.parse_args()
    options.runs_dir.mkdir(parents=True, exist_ok=True)
    everything = [patch.id for patch in load_series().patches]
    off = sorted(set(everything) - set(options.needed))
    kinds = {"all": [], "needed": off}
    times: dict[str, list[list[float]]] = {name: [] for name in kinds}
    for _ in range(options.pairs):
        for name, left_out in kinds.items():
            times[name].append(step_times(train(options.recipe, options.steps, options.runs_dir, left_out)))
    print(
        f"{options.recipe}, {options.pairs} runs of {options.steps} steps each, interleaved; steps >= {FIRST_STEP}"
    )
    print(f"{'patches':<10} {'number':>6} {'median s':>9} {'best s':>7}  medians of the runs, s")
    medians = {}
    for name, left_out in kinds.items():
        together = [value for run in times[name] for value in run]
        medians[name] = statistics.median(together)
        runs = ", ".join(f"{statistics.median(run):.3f}" for run in times[name])
        number = len(everything) - len(left_out)
        print(f"{name:<10} {number:>6} {medians[name]:>9.3f} {min(together):>7.3f}  {runs}")
    difference = medians["all"] / medians["needed"] - 1
    print(f"the series costs {difference:+.1%} of a step; the limit is {LIMIT:.0%}")
    return int(difference > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
