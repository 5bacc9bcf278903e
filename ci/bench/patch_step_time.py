"""What the patch series costs a training step, as a table: whole runs with it and with only what the recipe needs.

    python ci/bench/patch_step_time.py [--recipe qwen3-tiny-dense] [--steps 16] [--pairs 2] --runs-dir DIR

The two runs of a pair go on at the same time, each bound to a core of its own, and change cores in the next pair: whatever
else the machine does slows both alike. Every run has the recipe's own seed, and so does the same work. The first steps warm up,
and in the last ones the slower run may be alone: EDGE steps at either end do not count.
Exit code 1: the medians differ by more than LIMIT.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from verl_musa.patching import load_series
from verl_musa.run.patches import OFF_ENV

LIMIT = 0.02
EDGE = 3
APART_S = 20
KEY = "timing_s/step"
# Weights go through host memory on the simulator; the tiny recipe works without any other patch, as its run here shows.
NEEDED = ("sglang-reduce-host-tensors",)
RUN_LIMIT_S = 1800
TASKSET = shutil.which("taskset") or "taskset"


def step_times(run: Path) -> list[float]:
    """Return the seconds of each step that counts, in order."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [float(row["data"][KEY]) for row in rows if KEY in row["data"]][EDGE:-EDGE]


def start(recipe: str, steps: int, runs_dir: Path, off: Sequence[str], core: int) -> subprocess.Popen[bytes]:
    """Start a run of the recipe without the patches ``off``, on one core."""
    script = Path(sys.executable).with_name("verl-musa")
    command = [str(script), "run", recipe, "--runs-dir", str(runs_dir), "--no-gate", "--set"]
    return subprocess.Popen(
        [TASKSET, "--cpu-list", str(core), *command, f"trainer.total_training_steps={steps}"],
        env={**os.environ, OFF_ENV: ",".join(off)},
    )


def pair(
    recipe: str, steps: int, runs_dir: Path, off: Sequence[str], cores: Sequence[int]
) -> list[list[float]]:
    """Run with all patches and without ``off``, at the same time; return the step times of each, in this order.

    Raises:
        SystemExit: a run failed, or was not the one that was meant.
    """
    folders = [
        runs_dir / f"{name}-on-core-{core}" for name, core in zip(("all", "needed"), cores, strict=True)
    ]
    processes = []
    for folder, left_out, core in zip(folders, ((), off), cores, strict=True):
        processes.append(start(recipe, steps, folder, left_out, core))
        time.sleep(APART_S)  # free ports are looked for at the start, and two runs must not find the same
    deadline = time.monotonic() + RUN_LIMIT_S
    codes = [process.wait(max(1.0, deadline - time.monotonic())) for process in processes]
    if any(codes):
        raise SystemExit(f"the runs ended with {codes}; see {runs_dir}")
    times = []
    for folder, left_out in zip(folders, ((), off), strict=True):
        (made,) = folder.glob("*/*/run.json")
        recorded = json.loads(made.read_text(encoding="utf-8"))["patches"]["off"]
        if recorded != sorted(left_out):
            raise SystemExit(f"{made}: left out {recorded}, expected {sorted(left_out)}")
        times.append(step_times(made.parent))
    return times


def main() -> int:
    """Run, print the table, and say whether the limit holds."""
    parser = argparse.ArgumentParser(description="Cost of the patch series in a training step.")
    parser.add_argument("--recipe", default="qwen3-tiny-dense")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=2, choices=(2, 4, 6))
    parser.add_argument("--needed", nargs="*", default=NEEDED)
    parser.add_argument("--runs-dir", type=Path, required=True, help="a new folder")
    options = parser.parse_args()
    everything = [patch.id for patch in load_series().patches]
    off = sorted(set(everything) - set(options.needed))
    cores = sorted(os.sched_getaffinity(0))[:2]
    print(f"{options.recipe}, pairs of runs of {options.steps} steps at the same time, a core each")
    print(
        f"{'pair':<5} {f'all {len(everything)} patches':>17} {f'only {len(options.needed)}':>8}  difference"
    )
    ratios = []
    for number in range(options.pairs):
        order = cores if number % 2 == 0 else cores[::-1]
        found = pair(options.recipe, options.steps, options.runs_dir / f"pair-{number + 1}", off, order)
        full, needed = (statistics.median(times) for times in found)
        ratios.append(full / needed)
        print(f"{number + 1:<5} {full:>15.3f} s {needed:>6.3f} s  {full / needed - 1:+.1%}", flush=True)
    difference = math.prod(ratios) ** (1 / len(ratios)) - 1
    print(f"the series costs {difference:+.1%} of a step; the limit is {LIMIT:.0%}")
    return int(difference > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
