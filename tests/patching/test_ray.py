"""A real Ray worker gets the series through its runtime environment."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from verl_musa.patching import gather
from verl_musa.patching.records import RUN_DIR_ENV

from .conftest import ADD_TEN, ANSWER, Lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DRIVER = """
import json, sys
import ray

variables = json.loads(sys.argv[1])
ray.init(num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[2], runtime_env={"env_vars": variables})

@ray.remote
def ask():
    import os
    import fakeup.core
    return fakeup.core.answer(), os.getpid()

try:
    print(*ray.get(ask.remote(), timeout=300))
finally:
    ray.shutdown()
"""


def test_a_ray_worker_is_patched_and_says_so(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    if not (Path(sysconfig.get_path("purelib")) / "verl_musa_start.pth").exists():
        pytest.skip("verl-musa is not installed in this environment, so there is no start hook")
    lab.patch("ten", ANSWER, ADD_TEN)
    plan = lab.env()
    variables = {**plan, RUN_DIR_ENV: str(tmp_path), "PYTHONPATH": str(lab.site)}
    # Ray's socket paths must stay short.
    with tempfile.TemporaryDirectory(prefix="vmp", ignore_cleanup_errors=True) as short:
        result = subprocess.run(
            [sys.executable, "-c", DRIVER, json.dumps(variables), short],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    answer, pid = result.stdout.split()[-2:]
    assert answer == "11"
    found = gather(tmp_path, plan=next(iter(plan.values())))
    assert found.problems == ()
    assert list(found.applied) == ["fakeup-ten"]
    (record,) = (tmp_path / "logs" / "patches").glob(f"*-{pid}.json")
    assert json.loads(record.read_text())["program"] == "default_worker.py"
