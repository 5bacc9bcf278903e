from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import Attempt, DeviceFacts, ProcessFacts, RecipeFacts, RunRecord


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "runs" / "fake_recipe" / "20260101T000000Z-abcdef")
    directory.create()
    return directory


@pytest.fixture
def record(run: RunDirectory) -> RunRecord:
    attempt = Attempt(
        number=1, started_at="2026-01-01T00:00:00+00:00", runner=ProcessFacts(pid=2**22 + 1, started=1.0)
    )
    value = RunRecord(
        run_id=run.path.name,
        status="running",
        recipe=RecipeFacts(name="fake_recipe", version="0.1.0", folder="recipes/fake_recipe"),
        created_at="2026-01-01T00:00:00+00:00",
        seed=17,
        device=DeviceFacts(type="musa", simulated=True, count=2),
        host="here",
        python="3.11",
        versions={"verl": "0.9.1"},
        git=None,
        sets=[],
        overrides=[],
        total_steps=3,
        attempts=[attempt],
    )
    value.save(run.record)
    return value
