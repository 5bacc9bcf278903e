"""Memory and speed of `verl-musa data prepare` and `data check` on a million rows.

    python ci/bench/data.py [--rows N] [--no-check]

Makes a synthetic JSON lines file of word problems with long questions, prepares and checks it in processes of its own, and prints
a table of rows per second and of each process's peak of resident memory. Takes under three minutes on two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = "import sys; from verl_musa.cli import main; sys.exit(main(sys.argv[1:]))"
LIMIT_S = 900
WORDS = ("train", "leaves", "station", "speed", "hours", "apples", "twice", "remaining", "equally", "friends")


def make(file: Path, rows: int) -> None:
    """Write ``rows`` different questions of about 300 letters with their answers; one in 50 stands twice."""
    rng = random.Random(17)  # noqa: S311 - data, no secrets
    texts = [" ".join(rng.choices(WORDS, k=40)) for _ in range(1000)]
    with file.open("w", encoding="utf-8") as stream:
        for number in range(rows):
            index = number - 1 if number % 50 == 49 else number  # noqa: PLR2004
            question = f"Problem {index}: {texts[index % len(texts)]}. How many are left of {index % 977}?"
            row = {"question": question, "answer": f"It takes some steps.\n#### {index % 977:,}"}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")


def run(*arguments: str) -> tuple[float, float, int]:
    """Run one command; (seconds, peak resident MiB, exit code)."""
    script = (
        "import json, os, resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
        "print(json.dumps([resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, code]))"
    )
    started = time.monotonic()
    command = [sys.executable, "-c", script, sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=LIMIT_S, env=os.environ
    )
    peak, code = json.loads(done.stdout)
    return time.monotonic() - started, peak, code


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Memory and speed of `verl-musa data` on many rows.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--no-check", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="verl-musa-bench-") as scratch:
        source, out = Path(scratch, "rows.jsonl"), Path(scratch, "out")
        make(source, asked.rows)
        print(f"{asked.rows:,} rows, {source.stat().st_size / 2**20:.0f} MiB of JSON lines")
        print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
        print("| what | seconds | rows/s | peak MiB | exit |\n|---|---|---|---|---|")
        verbs: dict[str, tuple[str, ...]] = {
            "prepare": ("data", "prepare", "gsm8k", "--train", str(source), "--out", str(out))
        }
        if not asked.no_check:
            verbs["check"] = ("data", "check", str(out / "train.parquet"))
        for name, arguments in verbs.items():
            seconds, peak, code = run(*arguments)
            print(
                f"| {name} | {seconds:.1f} | {asked.rows / seconds:,.0f} | {peak:.0f} | {code} |", flush=True
            )


if __name__ == "__main__":
    main()
