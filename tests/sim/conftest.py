"""Fixtures of the simulator's tests: ranks of a distributed job, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

JOBS = Path(__file__).with_name("jobs")
Results = list[dict[str, str]]
RunRanks = Callable[..., Results]


def _environment(folder: Path, rank: int, world: int, extra: Mapping[str, str]) -> dict[str, str]:
    import torch_musa

    package_root = str(Path(torch_musa.__file__).parents[1])
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("MUSA_", "TORCHADA_"))
    }
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH")))),
        "MUSA_SIM_DEVICES": str(world),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "SIM_JOB_FOLDER": str(folder),
        "OMP_NUM_THREADS": "1",
        **extra,
    }


@pytest.fixture
def run_ranks(tmp_path: Path) -> RunRanks:
    """``run_ranks("mccl_job.py", world=2, env={})``: each rank's named checks, "ok" or a traceback.

    A rank that ends badly or late fails the test with what it wrote. Only the processes started here are ended.
    """

    def run(job: str, world: int = 2, env: Mapping[str, str] | None = None, timeout: float = 240) -> Results:
        logs = [(tmp_path / f"rank{rank}.log").open("w+", encoding="utf-8") for rank in range(world)]
        ranks = [
            subprocess.Popen(
                [sys.executable, str(JOBS / job)],
                env=_environment(tmp_path, rank, world, env or {}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(logs)
        ]
        try:
            codes = [process.wait(timeout) for process in ranks]
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                    process.wait(10)
            for log in logs:
                log.close()
        for rank, code in enumerate(codes):
            log_text = (tmp_path / f"rank{rank}.log").read_text(encoding="utf-8")
            assert code == 0, f"rank {rank} of {job} ended with {code}:\n{log_text[-6000:]}"
        return [
            json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(world)
        ]

    return run


@pytest.fixture
def all_ok() -> Callable[[Results, set[str]], None]:
    """Asserts that every rank ran exactly the named checks, and that all of them passed."""

    def check(results: Results, expected: set[str]) -> None:
        for rank, checks in enumerate(results):
            bad = {name: text for name, text in checks.items() if text != "ok"}
            assert not bad, f"rank {rank}:\n" + "\n".join(f"--- {name}\n{text}" for name, text in bad.items())
            assert set(checks) == expected, f"rank {rank} ran other checks than expected"

    return check
