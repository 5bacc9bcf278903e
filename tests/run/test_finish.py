from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from verl_musa.cluster.processes import TAG, OwnedProcesses
from verl_musa.run.directory import RunDirectory
from verl_musa.run.finish import clean_up, write_metrics
from verl_musa.run.record import RayFacts, RunRecord


def ray_facts(folder: Path) -> RayFacts:
    return RayFacts(
        temp_dir=str(folder), port=1, dashboard_port=2, num_gpus=1, num_cpus=1, object_store_bytes=1
    )


def test_nothing_is_left_but_the_logs(run: RunDirectory, record: RunRecord, tmp_path: Path) -> None:
    logs = tmp_path / "vm-x" / "session_2026" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("hello")
    record.attempt.ray = ray_facts(tmp_path / "vm-x")
    environment = {**os.environ, TAG: run.path.name}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment)
    assert clean_up(run, record, OwnedProcesses(run.path.name)) == []
    assert process.wait(timeout=10) != 0
    assert not (tmp_path / "vm-x").exists()
    assert (run.logs / "ray" / "attempt-1" / "raylet.out").read_text() == "hello"
    assert clean_up(run, record, OwnedProcesses(run.path.name)) == []


def test_metrics_of_the_attempts_are_folded(run: RunDirectory, record: RunRecord) -> None:
    (run.logs / "metrics-attempt-1.jsonl").write_text('{"step": 1, "data": {"a": 1}}\n{"step": 2, "data"')
    assert write_metrics(run, record) == {1: {"a": 1}}
    assert run.metrics.read_text() == '{"step": 1, "data": {"a": 1}}\n'
