"""The agent with a stand-in for ``ray start``: a process that says what Ray says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from verl_musa.cluster import agent, agent_start
from verl_musa.cluster.agent import MARK, serve
from verl_musa.cluster.host import free_ports
from verl_musa.cluster.node import NodeSpec
from verl_musa.cluster.node_state import NodeStates
from verl_musa.cluster.processes import OwnedProcesses

# An agent leaves what it started running, and ends itself; this process goes on.
pytestmark = pytest.mark.filterwarnings(
    "ignore:subprocess .* is still running:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

UP = "import sys, time; print('Ray runtime started.', flush=True); time.sleep(120)"
DEAF = "import time; time.sleep(120)"
DEAD = "print('no such option')"
ENGINE = (
    "import subprocess, sys, time; subprocess.Popen(['sglang::scheduler', '-c', 'import time; time.sleep(120)'], executable=sys.executable);"
    "print('Ray runtime started.', flush=True); time.sleep(120)"
)


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeStates]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(agent_start, "make_temp_dir", lambda: _made(tmp_path / uuid.uuid4().hex[:8]))
    kept = NodeStates(tmp_path / "states")
    yield kept
    for state in kept.all():
        OwnedProcesses(state.cluster, state.host).end(term_s=0.1)


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def ray_is(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(NodeSpec, "command", lambda *_: [sys.executable, "-c", code])


def request(cluster: str = "c1", **changes: Any) -> str:
    ports = dict(
        zip(
            ("node_manager", "object_manager", "agent", "agent_grpc", "runtime_env", "metrics"),
            free_ports(6),
            strict=True,
        )
    )
    node = {
        "cluster": cluster,
        "owner": "me@here",
        "host": "node2",
        "address": "198.51.100.12",
        "head": False,
        "head_address": "198.51.100.11:6379",
        "dashboard_host": "198.51.100.11",
        "num_gpus": 1,
        "num_cpus": 2,
        "ports": ports,
        "wait_s": 20.0,
        **changes,
    }
    return json.dumps({"node": node})


def test_start_status_stop(states: NodeStates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray_is(monkeypatch, UP)
    logs = tmp_path / "run" / "node2"
    asked = request(logs=str(logs))
    answer = serve("start", asked, states)
    assert (answer["state"], answer["already"]) == ("up", False)
    process = psutil.Process(answer["pid"])
    assert os.getsid(process.pid) == process.pid  # it outlives the connection
    assert process.environ()["VERL_MUSA_RUN_ID"] == "c1"
    assert serve("start", asked, states)["already"] is True
    now = serve("status", '{"cluster": "c1"}', states)
    assert (now["state"], now["processes"], now["owner"]) == ("up", 1, "me@here")
    session = Path(answer["temp_dir"]) / "session_2026" / "logs"
    session.mkdir(parents=True)
    (session / "raylet.out").write_text("said\n")
    ended = serve("stop", '{"cluster": "c1"}', states)
    assert (ended["ended"], ended["problems"]) == (1, [])
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert (logs / "raylet.out").read_text() == "said\n"
    assert "Ray runtime started" in (logs / "ray-start.log").read_text()
    assert not Path(answer["temp_dir"]).exists()
    assert serve("stop", '{"cluster": "c1"}', states) == {"state": "none", "ended": 0, "problems": []}
    assert serve("status", '{"cluster": "c1"}', states)["state"] == "none"


def test_a_process_that_stands_still_is_named(states: NodeStates, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_is(monkeypatch, UP)
    process = psutil.Process(serve("start", request(), states)["pid"])
    assert serve("status", '{"cluster": "c1"}', states)["stopped"] == []
    process.suspend()
    (stopped,) = serve("status", '{"cluster": "c1"}', states)["stopped"]
    assert stopped["pid"] == process.pid
    assert "time.sleep" in stopped["title"] or "python" in stopped["title"]
    process.resume()
    assert serve("status", '{"cluster": "c1"}', states)["stopped"] == []


def test_another_cluster_on_the_port_is_named_and_left_alone(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(monkeypatch, UP)
    asked = json.loads(request())
    first = serve("start", json.dumps(asked), states)
    asked["node"]["cluster"] = "c2"
    error = serve("start", json.dumps(asked), states)["error"]
    assert error["message"] == "cluster c1 of me@here is up on this host"
    assert "cluster down c1" in error["fix"]
    assert serve("status", '{"cluster": "c1"}', states)["pid"] == first["pid"]
    assert states.load("c2") is None


def test_a_taken_port_is_named_with_who_has_it(states: NodeStates, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_is(monkeypatch, UP)
    asked = json.loads(request())
    with socket.socket() as taken:
        taken.bind(("", asked["node"]["ports"]["node_manager"]))
        taken.listen()
        error = serve("start", json.dumps(asked), states)["error"]
    assert "(node-manager-port) is taken" in error["message"]
    assert f"process {os.getpid()}" in error["found"]


def test_its_own_id_with_other_sizes_is_refused(states: NodeStates, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_is(monkeypatch, UP)
    asked = json.loads(request())
    serve("start", json.dumps(asked), states)
    asked["node"]["num_gpus"] = 4
    assert "other sizes" in serve("start", json.dumps(asked), states)["error"]["message"]


def test_a_start_that_dies_is_told_with_its_words_and_leaves_nothing(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(monkeypatch, DEAD)
    error = serve("start", request(), states)["error"]
    assert error["message"] == "Ray ended while it started"
    assert "no such option" in error["found"]
    assert states.all() == []


def test_a_start_that_hangs_ends_within_its_bound(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(monkeypatch, DEAF)
    began = time.monotonic()
    error = serve("start", request(wait_s=1.0), states)["error"]
    assert "not up within 1 s: it does not reach the head" in error["message"]
    assert time.monotonic() - began < 40
    assert states.all() == []
    assert OwnedProcesses("c1").refresh() == []


def test_a_dead_dashboard_is_noticed_at_once(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray_is(monkeypatch, UP)
    temp_dir = tmp_path / "ray"
    (temp_dir / "session_2026" / "logs").mkdir(parents=True)
    line = "RuntimeError: Module MetricsHead failed to start. Timeout after 30.0 seconds."
    (temp_dir / "session_2026" / "logs" / "dashboard.log").write_text(f"x\n{line}\n")
    monkeypatch.setattr(agent_start, "make_temp_dir", lambda: temp_dir)
    error = serve("start", request(head=True, address="127.0.0.1", dashboard_host="127.0.0.1"), states)[
        "error"
    ]
    assert f"Ray's dashboard died at its start: {line}" in error["message"]


def test_a_raylet_that_dies_of_load_is_noticed_and_tried_again(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray_is(monkeypatch, DEAF)
    made: list[Path] = []

    def make() -> Path:
        made.append(_made(tmp_path / uuid.uuid4().hex[:8]))
        if len(made) == 2:
            ray_is(monkeypatch, UP)
        else:
            logs = made[-1] / "session_2026" / "logs"
            logs.mkdir(parents=True)
            (logs / "raylet.err").write_text(
                "x\n[C 1 1] You have likely discovered a bug. Check failed: has_value() Timed out waiting\n"
            )
        return made[-1]

    monkeypatch.setattr(agent_start, "make_temp_dir", make)
    answer = serve("start", request(), states)
    assert (answer["state"], len(made)) == ("up", 2)
    assert not made[0].exists()
    assert serve("status", '{"cluster": "c1"}', states)["processes"] == 1


def test_a_raylet_that_dies_each_time_is_told(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray_is(monkeypatch, DEAF)

    def make() -> Path:
        folder = _made(tmp_path / uuid.uuid4().hex[:8])
        (folder / "session_2026" / "logs").mkdir(parents=True)
        (folder / "session_2026" / "logs" / "raylet.err").write_text("Check failed: no memory\n")
        return folder

    monkeypatch.setattr(agent_start, "make_temp_dir", make)
    error = serve("start", request(), states)["error"]
    assert "raylet died at its start: Check failed: no memory" in error["message"]
    assert states.all() == []


def test_a_killed_ray_has_ended_and_may_be_started_again(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(monkeypatch, UP)
    asked = request()
    pid = serve("start", asked, states)["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    now = serve("status", '{"cluster": "c1"}', states)
    assert now["state"] == "ended"
    assert "it was killed" in now["ended"]
    assert serve("start", asked, states)["pid"] != pid


def test_an_engine_process_that_vanishes_is_remembered(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(monkeypatch, ENGINE)
    pid = serve("start", request(), states)["pid"]
    (engine,) = psutil.Process(pid).children()
    while not psutil.Process(engine.pid).cmdline()[0].startswith("sglang"):
        time.sleep(0.05)
    assert serve("status", '{"cluster": "c1"}', states)["engines_gone"] == []
    engine.kill()
    while engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)
    (gone,) = serve("status", '{"cluster": "c1"}', states)["engines_gone"]
    assert (gone["pid"], gone["parent"]) == (engine.pid, pid)
    assert gone["title"].startswith("sglang::scheduler")


def test_two_hosts_under_one_kernel_do_not_end_each_others_processes(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray_is(monkeypatch, UP)
    other = NodeStates(tmp_path / "other")
    serve("start", request(), states)
    second = serve("start", request(host="node3"), other)
    assert serve("stop", '{"cluster": "c1"}', states)["ended"] == 1
    assert psutil.Process(second["pid"]).is_running()
    assert serve("stop", '{"cluster": "c1"}', other)["ended"] == 1


def test_logs_of_a_worker_and_of_a_file(states: NodeStates, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_is(monkeypatch, UP)
    temp_dir = Path(serve("start", request(), states)["temp_dir"])
    folder = temp_dir / "session_2026" / "logs"
    folder.mkdir(parents=True)
    (folder / "worker-a-01-77.err").write_text("last words\n")
    (folder / "raylet.out").write_text("one\ntwo\nthree\n")
    assert serve("logs", '{"cluster": "c1", "worker": 77}', states)["text"] == "last words"
    assert (
        serve("logs", '{"cluster": "c1", "name": "raylet.out", "lines": 2}', states)["text"] == "two\nthree"
    )
    assert serve("logs", '{"cluster": "c1"}', states)["files"] == ["raylet.out", "worker-a-01-77.err"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ".hidden", "a\\u0000b"])
def test_a_log_outside_of_the_folder_is_refused(
    states: NodeStates, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ray_is(monkeypatch, UP)
    temp_dir = Path(serve("start", request(), states)["temp_dir"])
    (temp_dir / "session_2026" / "logs").mkdir(parents=True)
    answer = serve("logs", f'{{"cluster": "c1", "name": "{name}"}}', states)
    assert "no name of a log" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("reboot", "{}"),
        ("status", "[]"),
        ("status", "{"),
        ("status", "{}"),
        ("status", '{"cluster": "../../x"}'),
        ("stop", '{"cluster": "a;b"}'),
        ("start", '{"node": {"cluster": "x; rm -rf /"}}'),
        ("start", "{}"),
    ],
)
def test_what_is_no_request_is_an_error_and_no_more(states: NodeStates, verb: str, text: str) -> None:
    assert serve(verb, text, states)["error"]["message"]
    assert states.all() == []


def test_facts_name_addresses_and_versions(states: NodeStates) -> None:
    found = serve("facts", '{"name": "127.0.0.1"}', states)
    assert "127.0.0.1" in found["addresses"]["lo"]
    assert found["named"] == ["127.0.0.1"]
    assert found["cpus"] >= 1
    assert abs(found["time"] - time.time()) < 30
    assert serve("facts", '{"name": "no such host..."}', states)["named"] == []


def test_the_program_answers_on_one_marked_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "verl_musa.cluster.agent", "facts"],
        input=b"{}",
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith(MARK)]
    assert json.loads(lines[0].removeprefix(MARK))["hostname"]
    assert agent.main.__doc__
