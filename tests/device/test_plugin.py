"""The plugin in a process of its own, as verl loads it: registered and working, or ended with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_musa", reason="neither torch_musa nor the simulator is installed")

LIMIT_S = 240
REPORT = """
import json, verl
from verl.plugin.platform import get_platform, PlatformRegistry
from verl_musa.device import plugin
print("REPORT " + json.dumps({
    "device": get_platform().device_name,
    "module": type(get_platform()).__module__,
    "registered": plugin.registered(),
    "names": list(PlatformRegistry.registered_names()),
}))
"""


def _run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = {"VERL_MUSA_EXPECT", "VERL_PLATFORM", "VERL_MUSA_RUN_DIR", "VERL_USE_EXTERNAL_PLUGINS"}
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def _broken_torch_musa(tmp_path: Path) -> str:
    package = tmp_path / "broken" / "torch_musa"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libmusart.so: cannot open')\n", encoding="utf-8")
    return str(package.parent)


def test_verl_loads_the_plugin_and_uses_musa() -> None:
    done = _run(REPORT, VERL_PLATFORM="musa")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.split("REPORT ", 1)[1])
    assert report["device"] == "musa"
    assert report["module"] == "verl_musa.device.platform"
    assert report["registered"] is True


def test_a_process_that_asks_for_no_musa_is_left_alone(tmp_path: Path) -> None:
    script = "import sys, verl; print('torch_musa' in sys.modules, 'verl_musa.device.plugin' in sys.modules)"
    done = _run(script, PYTHONPATH=_broken_torch_musa(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True"]


def test_a_broken_torch_musa_ends_the_process_although_verl_swallows_exceptions(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = _run(
        "import verl; print('went on')",
        VERL_PLATFORM="musa",
        VERL_MUSA_RUN_DIR=str(run_dir),
        PYTHONPATH=_broken_torch_musa(tmp_path),
    )
    assert done.returncode == 1
    assert "went on" not in done.stdout
    assert (
        "the verl plugin for musa could not be loaded: ImportError: libmusart.so: cannot open" in done.stderr
    )
    failures = list((run_dir / "logs" / "proof").glob("failed-*.txt"))
    assert len(failures) == 1
    assert failures[0].read_text(encoding="utf-8").startswith("ImportError: libmusart.so")


def test_a_plugin_that_verl_was_told_to_leave_out_is_noticed() -> None:
    expected = json.dumps({"device": "musa", "backend": "mccl", "simulated": True})
    script = "from verl_musa.device import guard; guard.on_worker_start(); import verl; print('went on')"
    done = _run(script, VERL_MUSA_EXPECT=expected, VERL_USE_EXTERNAL_PLUGINS="none")
    assert done.returncode == 1
    assert "went on" not in done.stdout
    assert "ExpectationError" in done.stderr
