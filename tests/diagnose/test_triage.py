"""What went wrong first, over several hosts, processes and forms of logs. All logs here are made up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from verl_musa.diagnose.triage import triage, triage_paths, triage_run
from verl_musa.diagnose.triage_card import Card, Verdict
from verl_musa.diagnose.triage_sources import Clock, RunFacts, Source
from verl_musa.diagnose.triage_text import Stamp

Triage = Callable[..., Card]
OOM = "torch.OutOfMemoryError: MUSA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 80.00 GiB"
TIMEOUT = "Watchdog caught collective operation timeout: WorkMCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 milliseconds"


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_musa.diagnose.triage._zone_here", lambda _found: 0)


@pytest.fixture
def look(tmp_path: Path) -> Triage:
    """Triage files given as name -> text."""

    def triaged(files: dict[str, str], clocks: dict[str, Clock] | None = None) -> Card:
        for name, text in files.items():
            path = tmp_path / "logs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return triage_paths([tmp_path / "logs"], clocks=clocks)

    return triaged


def test_the_first_cause_of_two_hosts_and_its_consequences(look: Triage) -> None:
    card = look({
        "192.0.2.2/worker.log": f"2026-11-29 13:03:05,000 INFO step 7\n2026-11-29 13:03:06,500 ERROR {OOM}\n",
        "192.0.2.3/worker.log": f"[rank3]:[E1129 13:13:07.000000 ProcessGroupMCCL.cpp:616] {TIMEOUT}\n",
        "driver.log": "2026-11-29 13:13:09,000 ERROR ray.exceptions.ActorDiedError: The actor died unexpectedly\n",
    })  # fmt: skip
    assert (card.verdict, card.rule, card.where.host) == (Verdict.FOUND, "musa.out-of-memory", "192.0.2.2")
    assert card.when == "2026-11-29 13:03:06.500 UTC"
    assert [(one.rule, one.count) for one in card.consequences] == [
        ("mccl.watchdog-timeout", 1),
        ("ray.actor-died", 1),
    ]
    assert card.evidence[0].file == "logs/192.0.2.2/worker.log"
    assert card.evidence[0].line == 2
    assert "only cause" in card.why
    assert card.exit_code == 2


def test_clocks_that_differ_decide_who_was_first(look: Triage) -> None:
    files = {
        "192.0.2.2/a.log": "2026-11-29 13:03:10,000 ERROR OSError: [Errno 28] No space left on device\n",
        "192.0.2.3/b.log": f"2026-11-29 13:03:20,000 ERROR {OOM}\n",
    }
    assert look(files).rule == "os.no-space"
    card = look(files, {"192.0.2.3": Clock(ahead=30.0)})
    assert (card.rule, card.when) == ("musa.out-of-memory", "2026-11-29 13:02:50.000 UTC")
    assert card.notes == ("times of 192.0.2.3 corrected by -30.000 s",)
    assert "the next, os.no-space, came 20.0 s later" in card.why
    assert [one.rule for one in card.others] == ["os.no-space"]


def test_zones_decide_who_was_first(look: Triage) -> None:
    files = {
        "192.0.2.2/a.log": "2026-11-29T13:03:10Z ERROR OSError: [Errno 28] No space left on device\n",
        "192.0.2.3/b.log": f"2026-11-29T21:03:05+08:00 ERROR {OOM}\n",
    }
    assert look(files).rule == "musa.out-of-memory"
    naive = {**files, "192.0.2.3/b.log": f"2026-11-29 21:03:05 ERROR {OOM}\n"}
    assert look(naive).rule == "os.no-space"
    assert look(naive, {"192.0.2.3": Clock(zone=28800)}).rule == "musa.out-of-memory"


def test_consequences_before_the_cause_in_the_file(look: Triage) -> None:
    card = look({"driver.log": (
        "2026-11-29 13:03:09,000 ERROR ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "RuntimeError: [pair.cc:534] Connection closed by peer [192.0.2.2]:3456\n"
        f"(WorkerDict pid=12, ip=192.0.2.4) 2026-11-29 13:03:01,000 ERROR {OOM}\n"
    )})  # fmt: skip
    assert card.rule == "musa.out-of-memory"
    assert (card.where.host, card.where.process, card.where.pid) == ("192.0.2.4", "WorkerDict", "12")
    assert {one.rule for one in card.consequences} == {"ray.actor-died", "mccl.peer-closed"}


def test_consequences_alone_are_called_so(look: Triage) -> None:
    card = look(
        {
            "a.log": f"2026-11-29 13:13:07,000 E {TIMEOUT}\n2026-11-29 13:13:08,000 ERROR Job entrypoint command failed with exit code 1\n"
        }
    )
    assert (card.verdict, card.rule, card.exit_code) == (Verdict.CONSEQUENCE, "mccl.watchdog-timeout", 2)
    assert "no log here has a cause" in card.why
    assert [one.rule for one in card.consequences] == ["ray.job-failed"]


def test_of_consequences_in_the_same_moment_the_one_that_names_the_dead_worker_is_shown(look: Triage) -> None:
    head = (
        "2026-11-29 13:13:07,000 ERROR ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "[2026-11-29 13:13:07,400 W 50 50] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = b274, "
        "node id = 67e9, address = 192.0.2.12, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a connection "
        "error code 2. End of file.\n"
    )
    card = look({"192.0.2.2/gcs_server.out": head})
    assert (card.verdict, card.rule) == (Verdict.CONSEQUENCE, "ray.worker-vanished")
    assert "says most" in card.why
    assert card.where.host == "192.0.2.12"
    later = head.replace("13:13:07,400", "13:13:17,400")
    assert look({"192.0.2.2/gcs_server.out": later}).rule == "ray.actor-died", (
        "what comes long after it does not"
    )


def test_workers_that_ran_out_of_memory_are_those_of_the_host_in_the_line(look: Triage) -> None:
    card = look({"192.0.2.2/gcs_server.out": (
        "[2026-11-30 18:56:34,785 W 27 27] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = 12d7, node id = 36c9, "
        "address = 192.0.2.12, exit_type = NODE_OUT_OF_MEMORY, exit_detail = 1 worker(s) were killed due to the node running low on "
        "memory. Memory on the node (IP: 192.0.2.12, ID: 36c9) was 2.44GB / 2.44GB (0.998692)\n"
    )})  # fmt: skip
    assert (card.rule, card.where.host) == ("ray.memory-monitor", "192.0.2.12")


def test_what_is_older_than_the_job_may_be_left_out(tmp_path: Path) -> None:
    log = tmp_path / "raylet.out"
    log.write_text(
        f"[2026-11-29 13:03:06,500 E 1 1] {OOM}\n[2026-11-29 13:13:06,500 E 1 1] OSError: [Errno 28] No space left on device\n"
    )
    since = datetime(2026, 11, 29, 13, 10, tzinfo=UTC).timestamp()
    assert triage_paths([tmp_path]).rule == "musa.out-of-memory"
    card = triage_paths([tmp_path], since=since)
    assert card.rule == "os.no-space"
    assert card.notes == ("1 lines from before 2026-11-29 13:10:00.000 UTC were left out",)
    assert triage_paths([tmp_path], since=since + 3600).verdict is Verdict.CLEAN


def test_a_chained_traceback_is_read_from_its_cause(look: Triage) -> None:
    card = look(
        {
            "x.log": """\
Traceback (most recent call last):
  File "/a.py", line 1, in load
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/tokens.json'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/b.py", line 2, in main
    raise RuntimeError("cannot start") from error
RuntimeError: cannot start
"""
        }
    )
    assert (card.rule, card.evidence[-1].line) == ("python.file-not-found", 4)
    assert card.what == "/data/tokens.json is not there on host ?"
    assert len(card.chain) == 2
    assert [one.line for one in card.evidence] == [2, 3, 4]


def test_a_known_cause_further_up_wins_over_an_unknown_end(look: Triage) -> None:
    card = look(
        {
            "x.log": """\
Traceback (most recent call last):
  File "/a.py", line 1, in f
    cache[key]
KeyError: 'abc'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/b.py", line 2, in g
    allocate()
torch.OutOfMemoryError: MUSA out of memory. Tried to allocate 1.00 GiB
"""
        }
    )
    assert card.rule == "musa.out-of-memory"


def test_an_unknown_cause_is_not_hidden_by_the_consequence_raised_from_it(look: Triage) -> None:
    direct = """\
Traceback (most recent call last):
  File "/a.py", line 1, in f
    reward(x)
ZeroDivisionError: division by zero

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/b.py", line 2, in g
    raise
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
"""
    card = look({"x.log": direct})
    assert (card.verdict, card.what) == (Verdict.UNKNOWN, "ZeroDivisionError: division by zero")
    handled = direct.replace(
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    )
    assert look({"x.log": handled}).rule == "ray.actor-died"


def test_tracebacks_of_several_workers_between_each_other(look: Triage) -> None:
    mine, other = "(A pid=1, ip=192.0.2.1) ", "(B pid=2, ip=192.0.2.2) "
    card = look({"driver.log": "\n".join([
        mine + "Traceback (most recent call last):",
        other + "Traceback (most recent call last):",
        mine + '  File "/a.py", line 1, in f',
        other + '  File "/b.py", line 9, in g',
        mine + "    f()",
        "step 3",
        other + "    g()",
        other + "ModuleNotFoundError: No module named 'mbridge'",
        mine + "ray.exceptions.OwnerDiedError: Failed to retrieve object",
    ])})  # fmt: skip
    assert (card.rule, card.where.host, card.where.process) == ("python.module-missing", "192.0.2.2", "B")
    assert [one.rule for one in card.consequences] == ["ray.object-lost"]


def test_repeated_lines_are_counted(look: Triage) -> None:
    card = look({"driver.log": (
        "(A pid=1) ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "(A pid=1) ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task. [repeated 15x across cluster]\n"
        + "(B pid=2) RuntimeError: Connection reset by peer\n" * 5
        + OOM
    )})  # fmt: skip
    assert {one.rule: one.count for one in card.consequences} == {"ray.actor-died": 16, "mccl.peer-closed": 5}
    assert "21 other lines" in card.why


def test_a_healthy_log_has_nothing_abnormal(look: Triage) -> None:
    card = look({"driver.log": (
        "2026-11-29 13:03:05,000 INFO worker.py:1 -- Connecting to existing Ray cluster\n"
        "/x/engine/__init__.py:32: UserWarning: torchtitan engine is not available: ModuleNotFoundError(\"No module named 'torchtitan'\")\n"
        "step:1 - actor/entropy_error:0.1 - 0 Errors so far\n"
        "[2026-11-29 13:04:05,000 I 79 79] (raylet) node_manager.cc:1: Disconnecting client, ActorDiedError of a finished job\n"
    )})  # fmt: skip
    assert (card.verdict, card.exit_code, card.rule, card.files) == (Verdict.CLEAN, 0, "", 1)


def test_what_no_rule_knows_is_unknown_with_its_earliest_lines(look: Triage) -> None:
    card = look({"a.log": (
        "2026-11-29 13:03:07,000 ERROR second.py:1 -- later\n2026-11-29 13:03:05,000 INFO fine\n"
        'Traceback (most recent call last):\n  File "/r.py", line 5, in score\n    return a / b\nmypackage.Oddity: never seen\n'
        "2026-11-29 13:03:06,000 ERROR x.py:1 -- it failed\nValueError: odd\n"
    )})  # fmt: skip
    assert (card.verdict, card.rule, card.exit_code) == (Verdict.UNKNOWN, "UNKNOWN", 3)
    assert card.what == "mypackage.Oddity: never seen"
    assert "return a / b" in " ".join(one.text for one in card.evidence)
    assert "no rule fits any of" in card.why


def test_lines_at_level_error_alone_are_unknown(look: Triage) -> None:
    card = look(
        {
            "a.log": "2026-11-29 13:03:05,000 ERROR x.py:1 -- could not do it\nE1129 13:03:06.000000 12 x.cc:9] nor this\n"
        }
    )
    assert (card.verdict, card.what) == (
        Verdict.UNKNOWN,
        "2026-11-29 13:03:05,000 ERROR x.py:1 -- could not do it",
    )
    assert len(card.evidence) == 2


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "os.native-abort"),
        (f"E {TIMEOUT}\nterminate called after throwing an instance of 'c10::DistBackendError'\n", "mccl.watchdog-timeout"),
        ('Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n  File "/x.py", line 3 in f\n', "os.segmentation-fault"),
        ("[  812.44] Memory cgroup out of memory: Killed process 4711 (ray::WorkerDict) total-vm:1kB\n", "os.cgroup-out-of-memory"),
        ("[Sun Nov 29 13:03:05 2026] Out of memory: Killed process 4711 (sglang::sched) total-vm:1kB\n", "os.out-of-memory"),
        (('[2026-11-29 13:03:05 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File "/s.py", line 1, in f\n    g()\n'
         "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n\n[2026-11-29 13:03:06] Received sigquit from a child process. It usually means the child failed.\n"),
         "sglang.memory-fraction"),
        ("W1129 13:03:05.1 1 api.py:897] Sending process 12 closing signal SIGTERM\n[rank1]: OSError: [Errno 28] No space left on device: '/x'\n", "os.no-space"),
    ],
)  # fmt: skip
def test_forms_of_the_stack(look: Triage, text: str, rule: str) -> None:
    assert look({"x.log": text}).rule == rule


def test_a_killed_process_on_another_host_explains_the_dead_actor(look: Triage) -> None:
    card = look({
        "driver.log": "2026-11-29 13:03:09,000 ERROR ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n",
        "node3/dmesg.log": "[Sun Nov 29 13:03:05 2026] Out of memory: Killed process 4711 (ray::WorkerDict) total-vm:1kB\n",
    })  # fmt: skip
    assert (card.rule, card.where.host, card.where.process, card.where.pid) == (
        "os.out-of-memory",
        "node3",
        "ray::WorkerDict",
        "4711",
    )


def test_what_belongs_to_a_crash_is_shown(look: Triage) -> None:
    card = look(
        {
            "x.log": 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "/x.py", line 3 in f\n'
        }
    )
    assert [one.line for one in card.evidence] == [1, 3, 4]
    card = look(
        {
            "x.log": "(A pid=1) terminate called after throwing an instance of 'std::bad_alloc'\n(A pid=1)   what():  std::bad_alloc\n"
        }
    )
    assert [one.text.strip() for one in card.evidence][-1] == "what():  std::bad_alloc"


def test_a_rank_is_named(look: Triage) -> None:
    card = look({"x.log": f"[rank5]: {OOM}\n"})
    assert card.where.rank == "5"
    assert look({"x.log": f"[2026-11-29 13:03:05 DP0 TP1] {OOM}\n"}).where.rank == "DP0 TP1"


def test_the_class_of_a_worker_is_taken_from_its_file(look: Triage) -> None:
    card = look({"worker-00ff-02000000-4711.err": f":job_id:02000000\n:actor_name:WorkerDict\n{OOM}\n"})
    assert (card.where.process, card.where.pid) == ("WorkerDict", "4711")


def test_a_line_without_time_lies_between_its_neighbours(look: Triage) -> None:
    card = look({
        "driver.log": f"2026-11-29 13:00:00,000 INFO step 1\n{OOM}\n2026-11-29 13:09:00,000 INFO the end\n",
        "other.log": "2026-11-29 13:05:00,000 ERROR OSError: [Errno 28] No space left on device\n",
    })  # fmt: skip
    assert card.rule == "os.no-space"  # the other may have been as late as 13:09
    assert [one.first for one in card.others] == ["after 2026-11-29 13:00:00.000 UTC"]


def test_a_file_without_any_time_has_that_of_its_last_change(look: Triage, tmp_path: Path) -> None:
    look({"worker.err": f"{OOM}\n"})
    os.utime(tmp_path / "logs" / "worker.err", (1_800_000_000, 1_800_000_000))
    card = look({"a.log": "1999-01-01 00:00:00,000 INFO old\n"})
    assert card.when == "about 2027-01-15 08:00:00 UTC (time of the file)"
    assert "its line has no time" in card.why


def test_answers_of_ray_s_api(look: Triage) -> None:
    nodes = [
        {"node_id": "a1", "node_ip": "192.0.2.2", "state": "ALIVE", "state_message": None, "end_time_ms": 0},
        {
            "node_id": "b2",
            "node_ip": "192.0.2.3",
            "state": "DEAD",
            "state_message": "health check failed",
            "end_time_ms": 1795957292490,
        },
        {
            "node_id": "c3",
            "node_ip": "192.0.2.4",
            "state": "DEAD",
            "state_message": "Expected termination: received SIGTERM",
            "end_time_ms": 1,
        },
    ]
    card = look({"nodes.json": json.dumps({"data": {"result": {"result": nodes}}}, indent=1)})
    assert (card.rule, card.where.host, card.when) == (
        "ray.node-dead",
        "192.0.2.3",
        "2026-11-29 13:01:32.490 UTC",
    )
    assert card.evidence[0].line > 10
    jobs = [
        {
            "submission_id": "raysubmit_1",
            "status": "FAILED",
            "message": f"Traceback…\n{OOM}",
            "end_time": 1795957200000,
        }
    ]
    assert look({"nodes.json": "{}", "jobs.json": json.dumps(jobs)}).rule == "musa.out-of-memory"


def test_an_actor_that_ended_as_it_should_is_no_failure(look: Triage) -> None:
    actors = [
        {
            "actor_id": "a",
            "state": "DEAD",
            "class_name": "W",
            "pid": 3,
            "death_cause": {"c": {"error_message": "INTENDED_SYSTEM_EXIT"}},
        },
        {"actor_id": "b", "state": "ALIVE", "class_name": "W", "pid": 4, "death_cause": None},
    ]
    assert look({"actors.json": json.dumps(actors)}).verdict is Verdict.CLEAN
    actors[0]["death_cause"] = {
        "c": {"error_message": "Worker unexpectedly exits", "node_ip_address": "192.0.2.7"}
    }
    card = look({"actors.json": json.dumps(actors)})
    assert (card.rule, card.where.host, card.where.pid) == ("ray.actor-died", "192.0.2.7", "3")


def test_checks_that_failed(look: Triage) -> None:
    checks = [
        {"check": "gate.mask", "status": "OK", "evidence": "fine"},
        {"check": "gate.rollout", "status": "FAIL", "evidence": "probabilities differ by 0.3"},
    ]
    card = look({"gate.json": json.dumps({"schema": 1, "checks": checks, "figures": {}}, indent=1)})
    assert (card.rule, card.evidence[0].line) == ("verl.gate-failed", 10)
    assert card.what.endswith("gate.rollout FAIL: probabilities differ by 0.3")


def test_json_of_another_form_is_read_as_text(look: Triage) -> None:
    assert look({"x.json": json.dumps({"message": OOM})}).rule == "musa.out-of-memory"
    assert look({"x.json": '{"half": "' + OOM}).rule == "musa.out-of-memory"
    assert look({"x.json": "[" * 5000 + OOM}).rule == "musa.out-of-memory"


def facts(path: Path, status: str, reason: str = "", **more: object) -> RunFacts:
    return RunFacts(path=path, run_id="r1", host="head", status=status, exit_reason=reason, **more)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    logs = tmp_path / "run" / "logs" / "ray" / "attempt-2"
    logs.mkdir(parents=True)
    (logs.parent / "attempt-1").mkdir()
    (logs.parent / "attempt-1" / "old.log").write_text(f"{OOM}\n")
    (logs / "job-driver-x-2.log").write_text("2026-11-29 21:03:05,000 INFO hello\n")
    return tmp_path / "run"


def test_a_run_is_its_last_attempt(run: Path) -> None:
    assert triage_run(facts(run, "running", attempt=2)).verdict is Verdict.CLEAN
    assert triage_run(facts(run, "running", attempt=1)).rule == "musa.out-of-memory"


def test_the_reason_of_the_runner_counts_too(run: Path) -> None:
    card = triage_run(facts(run, "failed", "nothing has moved for 30 minutes", attempt=2, ended=1795957292.0))
    assert (card.verdict, card.rule, card.where.process) == (
        Verdict.CONSEQUENCE,
        "verl.stalled",
        "verl-musa run",
    )
    assert card.when == "2026-11-29 13:01:32.000 UTC"


def test_a_failed_run_without_a_word_is_unknown(run: Path) -> None:
    card = triage_run(facts(run, "failed", "odd", attempt=2))
    assert (card.verdict, card.what) == (Verdict.UNKNOWN, "the run failed, and no log says anything abnormal")
    assert card.evidence[0].text == "odd"


def test_a_run_that_succeeded_or_was_interrupted_is_no_failure(run: Path) -> None:
    (run / "logs" / "noise.log").write_text("2026-11-29 13:03:05,000 ERROR x -- noise\nValueError: handled\n")
    assert triage_run(facts(run, "succeeded", attempt=2)).notes == ("the run succeeded",)
    card = triage_run(facts(run, "interrupted", "interrupted by SIGINT", attempt=2))
    assert (card.verdict, card.notes) == (Verdict.CLEAN, ("the run was interrupted: interrupted by SIGINT",))


def test_the_zone_of_a_run_is_seen_from_its_start(run: Path) -> None:
    log = run / "logs" / "ray" / "attempt-2" / "job-driver-x-2.log"
    log.write_text(f"2026-11-29 21:03:05,000 INFO hello\n2026-11-29 21:04:05,000 ERROR {OOM}\n")
    started = 1795957382.0  # 13:03:02 UTC
    card = triage_run(facts(run, "failed", "odd", attempt=2, started=started))
    assert card.when == "2026-11-29 13:04:05.000 UTC"
    assert card.where.host == "head"


def test_reading_stops_in_time_and_says_so(run: Path) -> None:
    card = triage_run(facts(run, "failed", "odd", attempt=2), seconds=0.0)
    assert any("for lack of time" in note for note in card.notes)


def test_of_one_moment_on_two_hosts_the_rule_that_says_more(look: Triage) -> None:
    files = {
        "node1/a.log": "2026-11-29 13:03:05,000 ERROR RuntimeError: MUSA error: invalid device function\n",
        "node2/b.log": f"2026-11-29 13:03:06,000 ERROR {OOM}\n",
    }
    card = look(files)
    assert (card.rule, card.where.host) == ("musa.out-of-memory", "node2")
    assert [one.rule for one in card.others] == ["musa.error"]
    later = {**files, "node2/b.log": f"2026-11-29 13:03:08,000 ERROR {OOM}\n"}
    assert look(later).rule == "musa.error"


def test_on_one_host_the_earlier_one_whatever_the_rule(look: Triage) -> None:
    card = look({
        "node1/a.log": "2026-11-29 13:03:05,000 ERROR RuntimeError: MUSA error: invalid device function\n",
        "node1/b.log": f"2026-11-29 13:03:05,200 ERROR {OOM}\n",
    })  # fmt: skip
    assert card.rule == "musa.error"


def test_lines_that_were_taken_out_of_a_file_keep_their_time() -> None:
    source = Source("x.json", None, ((3, OOM, Stamp(1795957292.0, 0)),))
    card = triage([source])
    assert (card.when, card.evidence[0].line, card.bytes_read) == ("2026-11-29 13:01:32.000 UTC", 3, len(OOM))
