from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from verl_musa.cluster.deaths import Death, EngineWatch, dead_actors, describe_actor, driver_log

KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) a long list."
)
WANTED = "The actor is dead because its worker process has died. Worker exit type: INTENDED_USER_EXIT Worker exit detail: x"


def actor(state: str = "DEAD", reason: str = "WORKER_DIED", message: str = KILLED) -> dict[str, Any]:
    context = {"reason": reason, "error_message": message, "node_ip_address": "10.0.0.5", "pid": 77}
    return {
        "actor_id": "a",
        "class_name": "WorkerDict",
        "name": "abcWorkerDict_0:1",
        "state": state,
        "pid": 77,
        "death_cause": {"actor_died_error_context": context} if state == "DEAD" else None,
    }


@pytest.mark.parametrize(
    ("one", "unexpected"),
    [
        (actor(), True),
        (actor(state="ALIVE"), False),
        (actor(message=WANTED), False),
        (actor(reason="RAY_KILL", message="killed by ray.kill"), False),
        (actor(reason="OUT_OF_SCOPE", message="all references were removed"), False),
        (actor(reason="OWNER_DIED", message="its owner has died"), False),
        (actor(reason="NODE_DIED", message="its node has died"), True),
        ({"state": "DEAD", "death_cause": {"creation_task_failure_context": {"error": "x"}}}, False),
        ({"state": "DEAD", "death_cause": None}, False),
    ],
)
def test_only_deaths_that_nobody_asked_for_count(one: dict[str, Any], *, unexpected: bool) -> None:
    assert bool(dead_actors([one])) is unexpected


def test_a_dead_worker_is_described_with_its_last_lines(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "worker-aa-01-77.out").write_text(":job_id:01\nstep 1\n")
    (logs / "worker-aa-01-77.err").write_text("oh no\n")
    (logs / "worker-bb-01-78.err").write_text("somebody else\n")
    text = str(describe_actor(actor(), tmp_path))
    assert text.startswith(
        "worker WorkerDict 'abcWorkerDict_0:1' (pid 77, node 10.0.0.5) died: its process was killed"
    )
    assert "a long list" not in text
    assert "    | step 1\n    | oh no" in text
    assert "somebody else" not in text
    assert "job_id" not in text
    assert str(describe_actor(actor(), None)).endswith("it logged nothing")


def test_the_drivers_last_lines(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job-driver-j.log").write_text("a\nb\n")
    assert driver_log(tmp_path, "j", 1) == "b"


def test_a_vanished_engine_process_is_noticed_after_the_grace() -> None:
    time_now = [0.0]
    code = ["sglang::scheduler_TP0", "-c", "import time; time.sleep(60)"]
    engine = subprocess.Popen(code, executable=sys.executable)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    watch = EngineWatch("host", clock=lambda: time_now[0])
    found = [psutil.Process(engine.pid), psutil.Process(other.pid)]
    try:
        watch.look(found)
        for process in (engine, other):
            process.kill()
            process.wait(timeout=10)
        watch.look([])
        assert watch.first_death(older_than_s=5, session_dir=None) is None
        time_now[0] = 6.0
        death = watch.first_death(older_than_s=5, session_dir=None)
        assert isinstance(death, Death)
        assert death.pid == engine.pid
        assert "sglang::scheduler_TP0" in death.who
    finally:
        for process in (engine, other):
            process.kill()
            process.wait(timeout=10)
