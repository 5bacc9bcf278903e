"""How fast `verl-musa triage` reads, and in how much memory: generated logs of several kinds, each in a process of its own.

python ci/bench/triage.py [--megabytes 1000] [--hostile-megabytes 20] [--seconds 120]
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE = 4 << 20
Maker = Callable[[random.Random], Iterator[bytes]]


def ordinary(rng: random.Random) -> Iterator[bytes]:
    """What a job of several hosts prints while all is well."""
    step = 0
    while True:
        step += 1
        stamp = (
            f"2026-11-29 {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02},{rng.randrange(1000):03}"
        )
        rank = rng.randrange(32)
        yield (
            f"\x1b[36m(WorkerDict pid={4000 + rank}, ip=192.0.2.{rank // 8 + 2})\x1b[0m {stamp} INFO actor.py:112 -- step:{step} - "
            f"actor/loss:{rng.random():.5f} - perf/throughput:{rng.random() * 900:.1f} - response_length/mean:{rng.random() * 900:.1f}\n"
        ).encode()


def errors(rng: random.Random) -> Iterator[bytes]:
    """Nothing but lines at level ERROR, each another."""
    while True:
        yield f"2026-11-29 13:03:05,188\tERROR worker.py:{rng.randrange(999)} -- attempt {rng.random()} of {rng.random()} failed\n".encode()


def tracebacks(rng: random.Random) -> Iterator[bytes]:
    """Tracebacks without an end."""
    while True:
        yield b"Traceback (most recent call last):\n"
        for _ in range(rng.randrange(3, 12)):
            yield f'  File "/opt/x/y.py", line {rng.randrange(999)}, in f{rng.randrange(99)}\n    return g(x)\n'.encode()
        yield f"ValueError: {rng.random()}\n".encode()


def garbage(rng: random.Random) -> Iterator[bytes]:
    """Random bytes."""
    while True:
        yield rng.randbytes(65536)


def long_lines(rng: random.Random) -> Iterator[bytes]:
    """Lines of ten megabytes, with errors in them."""
    while True:
        for _ in range(160):
            yield rng.choice((b"a", b" ", b"\x1b[", b"0", b"Error ")) * (65536 // 6)
        yield b"\n"


KINDS: dict[str, Maker] = {
    "ordinary": ordinary,
    "errors": errors,
    "tracebacks": tracebacks,
    "garbage": garbage,
    "long-lines": long_lines,
}


def write(path: Path, kind: str, megabytes: int) -> int:
    """Write a log of that kind and size; pieces are repeated, since making them takes longer than reading them."""
    lines, piece = KINDS[kind](random.Random(7)), bytearray()  # noqa: S311  (made-up logs, no secrets)
    while len(piece) < PIECE * (3 if kind == "long-lines" else 1):
        piece += next(lines)
    with path.open("wb") as stream:
        while stream.tell() < megabytes * 1_000_000:
            stream.write(piece)
        stream.write(
            b"\n2026-11-30 23:59:59,000\tERROR x.py:1 -- torch.OutOfMemoryError: MUSA out of memory. Tried to allocate 2 GiB\n"
        )
        return stream.tell()


def measure(path: Path) -> int:
    """Triage one file and print verdict, seconds and the peak of this process's memory."""
    from verl_musa.diagnose.triage import triage_paths
    from verl_musa.diagnose.triage_rules import shipped_rules

    shipped_rules()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, cpu = time.perf_counter(), time.process_time()
    card = triage_paths([path])
    seconds, busy = time.perf_counter() - begin, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(card.rule or card.verdict, f"{seconds:.2f} {busy:.2f} {before / 1024:.0f} {after / 1024:.0f}")
    return 0


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200, help="size of the ordinary log")
    parser.add_argument("--hostile-megabytes", type=int, default=20, help="size of the others")
    parser.add_argument("--seconds", type=float, default=120, help="longest for all of it")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure)
    print(
        "| log | MB | first cause | s | CPU s | MB/s | MB per CPU s | RSS before, MiB | peak RSS, MiB |\n|---|---|---|---|---|---|---|---|---|"
    )
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder, f"{kind}.log")
            size = write(path, kind, given.megabytes if kind == "ordinary" else given.hostile_megabytes) / 1e6
            command = [sys.executable, __file__, "--measure", str(path)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=max(1.0, end - time.monotonic()), check=True
            )
            verdict, seconds, cpu, before, after = done.stdout.split()
            rate, own = size / float(seconds), size / float(cpu)
            print(
                f"| {kind} | {size:.0f} | {verdict} | {seconds} | {cpu} | {rate:.0f} | {own:.0f} | {before} | {after} |",
                flush=True,
            )
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
