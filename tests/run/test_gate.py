from __future__ import annotations

import json
from typing import Any

import pytest

from verl_musa.checks import Result, Status
from verl_musa.errors import JobFailedError
from verl_musa.run import gate
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import RunRecord, load_record
from verl_musa.run.report import write_report

V1 = {"trainer": {"use_v1": True}}
PAIRS = Result(check="gate.reward", looks_at="pairs", status=Status.OK, evidence="3 responses")


def verdicts(run: RunDirectory, status: str = "OK", **more: Any) -> None:
    entry = {
        "check": "gate.lm-head",
        "looks_at": "heads",
        "status": status,
        "evidence": "seen | so",
        "fix": "mend it",
        "where": "",
    }
    report = {"schema": 1, "checks": [entry], "figures": {"seconds": 4.25}, **more}
    (run.logs / "gate.json").write_text(json.dumps(report))


@pytest.mark.parametrize(
    ("module", "config", "resumed", "expected"),
    [
        (gate.V1, V1, 0, "before"),
        (gate.V1, V1, 3, "off"),
        (gate.V1, {"trainer": {"use_v1": False}}, 0, "off"),
        ("fake_trainer.main", V1, 0, "off"),
    ],
)
def test_the_gate_belongs_before_step_1_of_verls_current_trainer(
    module: str, config: dict[str, Any], resumed: int, expected: str
) -> None:
    assert gate.due("before", config, module, resumed_from=resumed) == expected
    assert gate.due("off", config, module, resumed_from=resumed) == "off"


def test_the_job_is_told_by_a_variable() -> None:
    assert gate.variables("off") == {}
    assert gate.variables("only") == {"VERL_MUSA_GATE": "only"}


def test_verdicts_go_to_the_run_directory_the_record_and_the_report(
    run: RunDirectory, record: RunRecord
) -> None:
    verdicts(run)
    results = gate.settle(run, record, "before", [PAIRS])
    assert [result.check for result in results] == ["gate.lm-head", "gate.reward"]
    assert json.loads(run.gate.read_text())["exit_code"] == 0
    record.save(run.record)
    kept = load_record(run.record).gate
    assert kept is not None
    assert (kept.mode, kept.ran, kept.exit_code, kept.failed, kept.seconds) == ("before", True, 0, [], 4.25)
    write_report(run, record)
    report = run.report.read_text()
    assert "| correctness gate | 2 OK, 4 s |" in report
    assert "| gate.lm-head | OK | seen \\| so |" in report


def test_a_job_that_ended_earlier_leaves_only_the_golden_pairs(run: RunDirectory, record: RunRecord) -> None:
    gate.settle(run, record, "before", [PAIRS])
    assert record.gate is not None
    assert not record.gate.ran
    write_report(run, record)
    assert "the job did not get that far" in run.report.read_text()


def test_a_run_without_the_gate_says_so(run: RunDirectory, record: RunRecord) -> None:
    assert gate.settle(run, record, "off", []) == []
    assert not run.gate.exists()
    write_report(run, record)
    assert "| correctness gate | off |" in run.report.read_text()
    gate.require_ran(run, "off")


def test_an_attempt_without_the_gate_keeps_what_an_earlier_one_found(
    run: RunDirectory, record: RunRecord
) -> None:
    verdicts(run)
    gate.settle(run, record, "before", [PAIRS])
    before = record.gate
    assert len(gate.settle(run, record, "off", [])) == 2
    assert record.gate == before


def test_a_failed_check_is_the_reason_of_the_end(run: RunDirectory) -> None:
    assert gate.stopped_by_gate(run) is None
    verdicts(run)
    assert gate.stopped_by_gate(run) is None
    gate.require_ran(run, "before")
    verdicts(run, "FAIL")
    error = gate.stopped_by_gate(run)
    assert error is not None
    assert error.exit_code == 1
    assert "gate.lm-head" in error.message
    assert error.fix is not None
    assert error.fix.startswith("mend it")
    with pytest.raises(JobFailedError, match=r"gate\.lm-head"):
        gate.require_ran(run, "only")


def test_a_job_without_verdicts_fails_where_they_were_asked_for(run: RunDirectory) -> None:
    with pytest.raises(JobFailedError, match="did not run"):
        gate.require_ran(run, "before")


def test_what_the_job_scored_replaces_what_could_not_be_scored_before(
    run: RunDirectory, record: RunRecord
) -> None:
    entry = {
        "check": "gate.reward",
        "looks_at": "pairs",
        "status": "OK",
        "evidence": "scored",
        "fix": "",
        "where": "",
    }
    verdicts(run, checks=[entry])
    unscored = Result(check="gate.reward", looks_at="pairs", status=Status.UNKNOWN, evidence="later")
    assert [result.evidence for result in gate.settle(run, record, "before", [unscored])] == ["scored"]
