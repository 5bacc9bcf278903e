from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_musa.checks import Result, Status
from verl_musa.diagnose import failures, job_verdict, read_gate, write_gate
from verl_musa.errors import RunError

ENTRY = {
    "check": "gate.logprobs",
    "looks_at": "log-probabilities",
    "status": "FAIL",
    "evidence": "apart",
    "fix": "look",
    "where": "",
}


def put(folder: Path, **report: object) -> None:
    (folder / "gate.json").write_text(
        json.dumps({"schema": 1, "checks": [ENTRY], "figures": {"seconds": 3.0}, **report})
    )


def test_what_the_job_wrote_is_read(tmp_path: Path) -> None:
    assert job_verdict(tmp_path) is None
    put(tmp_path)
    verdict = job_verdict(tmp_path)
    assert verdict is not None
    assert verdict.figures == {"seconds": 3.0}
    assert verdict.skipped == ""
    assert [result.check for result in failures(verdict.results)] == ["gate.logprobs"]


def test_a_gate_that_was_left_out_says_why(tmp_path: Path) -> None:
    put(tmp_path, checks=[], skipped="the run goes on after step 4")
    verdict = job_verdict(tmp_path)
    assert verdict is not None
    assert verdict.results == []
    assert verdict.skipped.endswith("step 4")


@pytest.mark.parametrize("text", ["{", '{"schema": 2, "checks": []}', '{"schema": 1, "checks": [{}]}', "[]"])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "gate.json").write_text(text)
    with pytest.raises(RunError, match="cannot be read"):
        job_verdict(tmp_path)


def test_all_results_are_written_and_read_back(tmp_path: Path) -> None:
    put(tmp_path)
    golden = Result(check="gate.reward", looks_at="pairs", status=Status.OK, evidence="fine")
    verdict = job_verdict(tmp_path)
    assert verdict is not None
    path = tmp_path / "all.json"
    assert read_gate(path) == []
    write_gate(path, "tiny", [*verdict.results, golden], verdict)
    assert [result.status for result in read_gate(path)] == [Status.FAIL, Status.OK]
    report = json.loads(path.read_text())
    assert report["recipe"] == "tiny"
    assert report["exit_code"] == 2
    assert report["counts"]["FAIL"] == 1
    assert report["figures"] == {"seconds": 3.0}
