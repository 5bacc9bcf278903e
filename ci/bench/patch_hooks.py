"""What the patch hooks cost at process start, in one run, as a table.

    python ci/bench/patch_hooks.py [--rounds 40]

Processor time, user and system, of whole processes: a busy machine disturbs it less than the clock. Each round starts one
interpreter of every kind in turn. "import" rows import a fixed set of standard modules, none of which is a patch
target: there the hook must cost nothing more.
Exit code 1: the hooks cost more than LIMIT_MS of process start.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_musa._start import PLAN_ENV
from verl_musa.patching import activation_env, load_series

ROOT = Path(__file__).resolve().parents[2]
LIMIT_MS = 30.0
START = "import verl_musa._start"
EMPTY = "import verl_musa"
# About 150 modules with what they need.
OTHERS = "import asyncio, concurrent.futures, email.message, http.client, logging.config, multiprocessing, sqlite3, unittest"


def start_ms(code: str, env: Mapping[str, str]) -> float:
    """Return the processor time that one interpreter took to start, run ``code`` and end, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=dict(env), check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def measure(kinds: Mapping[str, tuple[str, Mapping[str, str]]], rounds: int) -> dict[str, list[float]]:
    """Return the times of every kind, in milliseconds, from interleaved rounds; the first round only warms up."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, (code, env) in kinds.items():
            took = start_ms(code, env)
            if number:
                times[name].append(took)
    return times


def extra_ms(times: Mapping[str, Sequence[float]], name: str, baseline: str) -> tuple[float, float]:
    """Return the difference of the medians in milliseconds, and their ratio."""
    one, other = statistics.median(times[name]), statistics.median(times[baseline])
    return one - other, one / other


def main() -> int:
    """Measure, print the table, and say whether the limit holds."""
    parser = argparse.ArgumentParser(description="Cost of the patch hooks at process start.")
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    without = {key: value for key, value in os.environ.items() if key != PLAN_ENV}
    without["PYTHONPATH"] = str(ROOT)
    # Where the .pth file is installed it has run already; importing the module again then costs nothing.
    hooked = {**without, **activation_env(simulated=True)}
    kinds = {
        "start, no hooks": (EMPTY, without),
        "start, hooks": (START, hooked),
        "import, no hooks": (f"{EMPTY}; {OTHERS}", without),
        "import, hooks": (f"{START}; {OTHERS}", hooked),
    }
    times = measure(kinds, rounds)
    print(
        f"{len(load_series().patches)} patches, plan of {len(hooked[PLAN_ENV])} bytes, {rounds} interleaved rounds"
    )
    print(f"{'':<18} {'median ms':>10} {'best ms':>9} {'extra ms':>9} {'ratio':>6}")
    extras = {}
    for name in kinds:
        baseline = name.replace(", hooks", ", no hooks")
        extras[name], ratio = extra_ms(times, name, baseline)
        median, best = statistics.median(times[name]), min(times[name])
        print(f"{name:<18} {median:>10.1f} {best:>9.1f} {extras[name]:>9.1f} {ratio:>6.2f}")
    worst = max(extras.values())
    print(f"the hooks cost {worst:.1f} ms of process start; the limit is {LIMIT_MS:.0f} ms")
    return int(worst > LIMIT_MS)


if __name__ == "__main__":
    raise SystemExit(main())
