from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from verl_musa.diagnose.triage_card import Card, Verdict
from verl_musa.errors import RunError
from verl_musa.fileio import write_json
from verl_musa.run import RunOptions, triage
from verl_musa.run.directory import RunDirectory, find_any_run
from verl_musa.run.record import HostFacts, RunRecord
from verl_musa.run.report import print_card, write_report
from verl_musa.run.runner import Runner
from verl_musa.run.triage import triage_end, triage_named, triage_run

OOM = "torch.OutOfMemoryError: MUSA out of memory. Tried to allocate 2.00 GiB"


@pytest.fixture
def failed(run: RunDirectory, record: RunRecord) -> RunRecord:
    """A run whose worker ran out of memory."""
    logs = run.logs / "ray" / "attempt-1"
    logs.mkdir(parents=True)
    (logs / "worker-00ff-02000000-12.err").write_text(
        f":actor_name:WorkerDict\n2026-01-01 00:01:00,000 ERROR {OOM}\n"
    )
    record.set_status("failed", "the job ended with exit code 1: torch.OutOfMemoryError")
    record.save(run.record)
    return record


def test_the_card_of_a_failed_run_is_kept_and_reported(run: RunDirectory, failed: RunRecord) -> None:
    notes: list[str] = []
    card = triage_end(run, failed, notes.append)
    assert card is not None
    assert (card.rule, card.where.host, card.where.process) == ("musa.out-of-memory", "here", "WorkerDict")
    assert [one.rule for one in card.consequences] == ["ray.job-failed"]
    assert json.loads(run.triage.read_text())["rule"] == "musa.out-of-memory"
    assert notes == []
    write_report(run, failed, card)
    text = run.report.read_text()
    assert "## Triage" in text
    assert "a device ran out of memory while it asked for 2.00 GiB" in text
    out = io.StringIO()
    print_card(card, Console(file=out, width=200))
    assert out.getvalue().startswith("first cause\n")


def test_logs_of_a_host_are_that_hosts_by_its_name(run: RunDirectory, failed: RunRecord) -> None:
    logs = run.logs / "ray" / "attempt-1"
    (logs / "gpu-b").mkdir()
    (logs / "worker-00ff-02000000-12.err").rename(logs / "gpu-b" / "worker-00ff-02000000-12.err")
    failed.attempt.hosts = [
        HostFacts(name=name, ssh=name, address=f"198.51.100.{n}", interface="eth1", hostname=name)
        for n, name in enumerate(("gpu-a", "gpu-b"), 1)
    ]
    write_json(run.clocks, {"schema": 1, "hosts": {"gpu-b": {"ahead_s": 30.0, "utc_offset_s": 0}}})
    card = triage_run(run, failed)
    assert card.where.host == "gpu-b"
    assert card.when == "2026-01-01 00:00:30.000 UTC"


def test_a_host_that_the_logs_know_by_its_address_is_named(run: RunDirectory, failed: RunRecord) -> None:
    logs = run.logs / "ray" / "attempt-1" / "gpu-a"
    logs.mkdir()
    (logs.parent / "worker-00ff-02000000-12.err").unlink()
    (logs / "gcs_server.out").write_text(
        "[2026-01-01 00:01:00,000 W 1 1] The node with node id: 00ff and address: 198.51.100.2 and node name: 198.51.100.2 has been "
        "marked dead because the detector has missed too many heartbeats from it.\n"
    )
    failed.attempt.hosts = [
        HostFacts(name=name, ssh=name, address=f"198.51.100.{n}", interface="eth1", hostname=name)
        for n, name in enumerate(("gpu-a", "gpu-b"), 1)
    ]
    card = triage_run(run, failed)
    assert card.rule == "ray.node-dead"
    assert (card.where.host, card.where.text) == ("gpu-b", "host gpu-b (198.51.100.2), gcs_server")


def test_a_run_that_did_not_fail_has_no_card(run: RunDirectory, record: RunRecord) -> None:
    write_json(run.triage, {"of": "an earlier attempt"})
    record.set_status("succeeded")
    assert triage_end(run, record, pytest.fail) is None
    assert not run.triage.exists()
    write_report(run, record)
    assert "## Triage" not in run.report.read_text()


def test_an_error_of_the_triage_hides_nothing(
    run: RunDirectory, failed: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Card:
        raise RuntimeError("boom")

    monkeypatch.setattr(triage, "triage_run", broken)
    notes: list[str] = []
    assert triage_end(run, failed, notes.append) is None
    assert notes == ["the triage itself failed: RuntimeError: boom"]


@pytest.mark.parametrize(("gate", "printed"), [("before", True), ("only", False)])
@pytest.mark.usefixtures("_no_cleaning_up")
def test_the_end_of_a_failed_attempt_shows_the_card(
    gate: str, *, printed: bool, run: RunDirectory, failed: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared: Any = SimpleNamespace(run=run, record=failed, gate=gate, golden=[])
    guardian: Any = SimpleNamespace(release=lambda: None)
    display: Any = SimpleNamespace(note=lambda _text: None, close=lambda: None)
    end: Any = Runner(RunOptions(recipe="x"), display=display)
    end._finish(prepared, None, guardian, "failed", "the job ended with exit code 1")
    shown = capsys.readouterr()
    assert ("first cause" in shown.out) is printed
    assert ("first cause" in shown.err) is not printed
    assert "musa.out-of-memory" in run.report.read_text()


@pytest.fixture
def _no_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_musa.run.runner.clean_up", lambda *_: [])
    monkeypatch.setattr("verl_musa.run.phases.gate.settle", lambda *_: None)


def test_recorded_clocks_are_used(run: RunDirectory, failed: RunRecord) -> None:
    write_json(run.clocks, {"schema": 1, "hosts": {"here": {"ahead_s": 10.0, "utc_offset_s": 0}}})
    card = triage_run(run, failed)
    assert card.when == "2026-01-01 00:00:50.000 UTC"
    assert card.notes == ("times of here corrected by -10.000 s",)


@pytest.mark.parametrize(
    "text", ["{", '{"hosts": {"a": 3}}', "[]", "{}", '{"hosts": {"a": {"ahead_s": "x"}}}']
)
def test_clocks_that_cannot_be_read_are_noted(text: str, run: RunDirectory, failed: RunRecord) -> None:
    run.clocks.write_text(text)
    card = triage_run(run, failed)
    assert card.rule == "musa.out-of-memory"
    assert card.notes[0].startswith("clocks.json cannot be read, so the clocks are taken for equal: ")


@pytest.mark.usefixtures("failed")
def test_a_record_of_another_version_is_read_as_far_as_it_can_be(run: RunDirectory) -> None:
    value = json.loads(run.record.read_text())
    write_json(run.record, {**value, "from_the_future": 1})
    card = triage_named(run)
    assert card.rule == "musa.out-of-memory"
    assert "this run's record cannot be read" in card.notes[-1]
    run.record.write_text("{")
    assert triage_named(run).verdict is Verdict.FOUND


def test_any_run_is_found_by_the_start_of_its_id(
    run: RunDirectory, record: RunRecord, tmp_path: Path
) -> None:
    assert find_any_run(tmp_path / "runs", "20260101T").path == run.path
    assert record.run_id == run.path.name
    other = RunDirectory(tmp_path / "runs" / "other" / "20260101T000000Z-ffffff")
    other.create()
    record.save(other.record)
    with pytest.raises(RunError, match="several runs begin with '2026'"):
        find_any_run(tmp_path / "runs", "2026")
    assert find_any_run(tmp_path / "runs", other.path.name).path == other.path
    with pytest.raises(RunError, match="no run begins with 'x'"):
        find_any_run(tmp_path / "runs", "x")
    with pytest.raises(RunError, match="no run at all"):
        find_any_run(tmp_path / "empty", "x")
