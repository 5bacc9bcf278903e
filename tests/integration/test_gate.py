"""The correctness gate in whole jobs: a healthy recipe, six planted bugs, and what training sees of the gate."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import JOB_LIMIT_S, RECIPE, Cli, metrics_of, processes_of, record_of

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
CHECKS = [
    "gate.logprobs",
    "gate.weight-sync",
    "gate.response-mask",
    "gate.chat-template",
    "gate.lm-head",
    "gate.reward",
]
# What each planted bug has to fail. A lost lm_head also makes other log-probabilities than the model's.
PLANTED = {
    "stale-tensor": ["gate.weight-sync"],
    "response-mask": ["gate.response-mask"],
    "chat-template": ["gate.chat-template"],
    "transposed-qkv": ["gate.logprobs"],
    "lost-lm-head": ["gate.logprobs", "gate.lm-head"],
}
ONE_STEP = ("--set", "trainer.total_training_steps=1", "--set", "trainer.test_freq=-1")
# Wall-clock figures and what is computed from them, and memory, differ between any two runs.
NOT_COMPARED = ("timing_", "perf/", "actor/perf/")


def run_gate(runs: Path, *arguments: str, **env: str) -> tuple[int, dict[str, Any], str]:
    """Run ``verl-musa gate … --json``; return exit code, what it printed, and standard error."""
    command = [
        str(Path(sys.executable).with_name("verl-musa")),
        "gate",
        *arguments,
        "--json",
        "--runs-dir",
        str(runs),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=JOB_LIMIT_S, check=False, env={**os.environ, **env}
    )
    sys.stdout.write(done.stderr[-20000:])
    return done.returncode, json.loads(done.stdout), done.stderr


def test_each_planted_bug_fails_by_its_name_and_a_healthy_job_has_none(tmp_path: Path) -> None:
    code, report, _ = run_gate(tmp_path / "runs", RECIPE, VERL_MUSA_TEST_PLANT=",".join(PLANTED))
    assert {check["check"]: check["status"] for check in report["checks"]} == dict.fromkeys(CHECKS, "OK"), (
        report
    )
    assert code == 0
    run_dir = Path(report["run"])
    record = record_of(run_dir)
    assert record["status"] == "succeeded"
    assert record["gate"]["mode"] == "only"
    assert record["gate"]["exit_code"] == 0
    assert metrics_of(run_dir) == []
    assert processes_of(run_dir) == []
    planted = json.loads((run_dir / "logs" / "gate.json").read_text())["planted"]
    failed = {
        name: [check["check"] for check in checks if check["status"] == "FAIL"]
        for name, checks in planted.items()
    }
    assert failed == PLANTED
    (stale,) = [check for check in planted["stale-tensor"] if check["status"] == "FAIL"]
    assert "model.layers.1.mlp.down_proj.weight" in stale["evidence"]
    assert stale["evidence"].startswith("2 did not change"), "one tensor on each of two replicas"


def test_training_sees_nothing_of_the_gate(cli: Cli) -> None:
    assert cli.run(RECIPE, *ONE_STEP) == 0
    assert cli.run(RECIPE, *ONE_STEP, "--no-gate") == 0
    gated, plain = sorted(cli.run_dirs())
    assert record_of(gated)["gate"]["ran"] is True
    assert record_of(gated)["gate"]["exit_code"] == 0
    assert record_of(plain)["gate"] == {**record_of(plain)["gate"], "mode": "off", "ran": False}
    assert not (plain / "gate.json").exists()
    assert "## Correctness gate" in (gated / "report.md").read_text()
    for ours, theirs in zip(metrics_of(gated), metrics_of(plain), strict=True):
        assert _comparable(ours) == _comparable(theirs)
    assert any("actor/grad_norm" in row["data"] for row in metrics_of(gated))


def test_swapped_ground_truth_ends_a_run_before_anything_is_started(tmp_path: Path) -> None:
    folder = tmp_path / "recipes" / RECIPE
    shutil.copytree(ROOT / "recipes" / RECIPE, folder)
    golden = yaml.safe_load((folder / "golden.yaml").read_text())
    first, second, *_ = golden["cases"]
    first["ground_truth"], second["ground_truth"] = second["ground_truth"], first["ground_truth"]
    (folder / "golden.yaml").write_text(yaml.safe_dump(golden))
    command = [
        str(Path(sys.executable).with_name("verl-musa")),
        "run",
        str(folder),
        "--runs-dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_LIMIT_S, check=False)
    assert done.returncode == 2
    assert "gate.reward" in done.stderr
    assert not list(tmp_path.glob("*/*/run.json"))


def _comparable(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row["data"].items() if not name.startswith(NOT_COMPARED)}
