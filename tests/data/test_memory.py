"""Memory stays where it is when the rows grow tenfold: what is kept of a row is counted in bytes. ci/bench/data.py takes a million."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FEW, MANY = 20_000, 200_000
TEXT = "How many leaves are left on the train to the station after two hours of equal speed? " * 4

CODE = """\
import resource, sys
from verl_musa.cli import main
codes = [main(arguments.split("|")) for arguments in sys.argv[1:]]
print(codes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peaks(folder: Path, rows: int) -> tuple[int, int]:
    """Peak resident MiB of preparing ``rows`` rows and of checking them, each in a process of its own."""
    source, out = folder / f"{rows}.jsonl", folder / f"out-{rows}"
    with source.open("w", encoding="utf-8") as stream:
        for number in range(rows):
            stream.write(json.dumps({"question": f"{number}: {TEXT}", "answer": f"#### {number}"}) + "\n")
    found = []
    for arguments in (f"data|prepare|gsm8k|--train|{source}|--out|{out}", f"data|check|{out}/train.parquet"):
        done = subprocess.run(
            [sys.executable, "-c", CODE, arguments], capture_output=True, text=True, check=False, timeout=540
        )
        assert done.stdout, done.stderr
        codes, _, peak = done.stdout.strip().splitlines()[-1].rpartition(" ")
        assert codes in {"[0]", "[3]"}, done.stdout  # 3: there is no tokenizer to count with
        found.append(int(peak))
    return found[0], found[1]


@pytest.mark.integration
@pytest.mark.timeout(1500)
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    few, many = peaks(tmp_path, FEW), peaks(tmp_path, MANY)
    # 180,000 rows more are 70 MB of text; of each row 32 bytes are kept while preparing, and 58 while checking.
    assert many[0] - few[0] < 60, (few, many)
    assert many[1] - few[1] < 100, (few, many)
