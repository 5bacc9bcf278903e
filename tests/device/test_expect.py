from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_musa.device.expect import (
    EXPECT_ENV,
    RUN_DIR_ENV,
    Expectation,
    ExpectationError,
    expectation,
    proof_dir,
    write_atomically,
)


def test_reads_what_the_runner_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXPECT_ENV, json.dumps({"device": "musa", "backend": "mccl", "simulated": True}))
    assert expectation() == Expectation("musa", "mccl", True)


def test_no_run_expects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXPECT_ENV, raising=False)
    assert expectation() is None


@pytest.mark.parametrize(
    "text",
    [
        "musa",
        "[]",
        '{"device": "musa"}',
        '{"device": "musa", "backend": "mccl", "simulated": "yes"}',
        '{"device": 1, "backend": "mccl", "simulated": true}',
    ],
)
def test_an_unreadable_expectation_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(EXPECT_ENV, text)
    with pytest.raises(ExpectationError, match="VERL_MUSA_EXPECT: found"):
        expectation()


def test_proof_dir_is_made_in_the_run_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    assert proof_dir() == tmp_path / "logs" / "proof"
    assert (tmp_path / "logs" / "proof").is_dir()
    monkeypatch.delenv(RUN_DIR_ENV)
    assert proof_dir() is None


def test_write_leaves_the_new_text_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["proof.json"]
