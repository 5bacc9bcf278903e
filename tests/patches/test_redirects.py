"""What torchada and verl do for Megatron-Core on the device, so that no patch is needed (patches/README.md names these)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_musa.patching import activation_env

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("jobs") / "megatron_redirects.py"
LIMIT_S = 600
CHECKS = {
    "literal_devices",
    "literal_backends",
    "typed_tensors",
    "default_generators",
    "recomputation_with_dropout",
    "recomputation_as_verl_patches_it",
    "optimizer_on_the_host",
    "half_an_optimizer_on_the_host",
    "nvtx_ranges",
    "autocast_by_its_alias",
}


@pytest.mark.integration
def test_megatron_core_on_the_simulated_device(aside: Any) -> None:
    if aside.version("megatron-core") is None or aside.version("torchada") is None:
        pytest.skip(
            "Megatron-Core or torchada is not installed here (`ci/stack.py megatron` puts them aside)"
        )
    start = f"import runpy, verl_musa._start; runpy.run_path({str(JOB)!r}, run_name='__main__')"
    job = subprocess.run(
        [sys.executable, "-c", start],
        env={
            **os.environ,
            **activation_env(simulated=True),
            "PYTHONPATH": aside.python_path(ROOT),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-6000:]
    results = json.loads(job.stdout.splitlines()[-1])
    assert not {name: text for name, text in results.items() if text != "ok"}
    assert set(results) == CHECKS
