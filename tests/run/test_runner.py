from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROOT = FIXTURES.parents[1]
LIMIT_S = 240


@dataclass
class FakeCli:
    """``verl-musa run`` of the fake trainer's recipe, in a process of its own."""

    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(ROOT), str(FIXTURES)])
        with (self.folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(FIXTURES / "run_fake.py"),
                    "run",
                    "--no-gate",  # the fake trainer has no engines to look at
                    str(FIXTURES / "fake_recipe"),
                    *arguments,
                ],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": paths, "TMPDIR": tempfile.gettempdir(), **env},
            )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **env: str) -> int:
        return self.start(*arguments, **env).wait(timeout=LIMIT_S)

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    @property
    def run_dir(self) -> Path:
        (found,) = self.folder.glob("runs/fake_recipe/*")
        return found

    @property
    def record(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run_dir / "run.json").read_text())
        return value

    def steps(self) -> list[int]:
        lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    def wait_until(self, ready: Callable[[], bool], *, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not ready():
            assert time.monotonic() < deadline, self.output[-4000:]
            time.sleep(0.1)

    def wait_for_step(self, process: subprocess.Popen[bytes], step: int) -> None:
        def reached() -> bool:
            assert process.poll() is None, self.output[-4000:]
            return bool(list(self.folder.glob("runs/*/*/metrics.jsonl"))) and step in self.steps()

        self.wait_until(reached)

    def workers(self) -> list[int]:
        return sorted(int(path.stem.split("-")[1]) for path in self.run_dir.glob("logs/proof/actor-*.json"))

    def processes(self) -> list[str]:
        """What still runs of this run: by its tag, and by its folder on a command line (the guardian, Ray)."""
        found = []
        names = {self.run_dir.name, self.temp_dir}
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                tagged = process.environ().get("VERL_MUSA_RUN_ID") == self.run_dir.name
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if process.pid != os.getpid() and (tagged or any(name in line for name in names)):
                found.append(f"{process.pid} {line}")
        return found

    @property
    def temp_dir(self) -> str:
        return str(self.record["attempts"][-1]["ray"]["temp_dir"])

    def assert_nothing_left(self) -> None:
        assert self.processes() == []
        assert not Path(self.temp_dir).exists()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=90)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[FakeCli]:
    command = FakeCli(tmp_path)
    try:
        yield command
    finally:
        command.close()
        sys.stdout.write(command.output[-8000:])


def test_a_run_succeeds_and_leaves_its_directory_and_nothing_else(cli: FakeCli) -> None:
    assert cli.run(RAY_ADDRESS="192.0.2.1:6379") == 0
    record = cli.record
    assert "RAY_ADDRESS=192.0.2.1:6379 is ignored" in cli.output
    assert record["status"] == "succeeded"
    assert record["device"]["proven"] is True
    assert record["device"]["mccl_calls"] == {"allreduce": 6, "broadcast": 2}
    assert cli.steps() == [0, 1, 2, 3, 4]
    assert record["summary"]["steps"] == 4
    assert "| status | succeeded |" in (cli.run_dir / "report.md").read_text()
    everything = "".join(path.read_text() for path in cli.run_dir.glob("*") if path.is_file())
    assert "opensesame" not in everything
    assert any(cli.run_dir.glob("logs/ray/attempt-1/worker-*.out"))
    cli.assert_nothing_left()


def test_a_failing_job_names_its_error_and_exits_with_1(cli: FakeCli) -> None:
    assert cli.run("--set", "fake.fail_at=2") == 1
    assert "ValueError: the loss is not a number at step 2" in cli.record["exit_reason"]
    assert cli.record["status"] == "failed"
    assert cli.steps() == [0, 1]
    shown = cli.output.partition("verl-musa: error:")[0]
    assert "Traceback" not in shown
    assert (
        "UNKNOWN: the earliest abnormal lines" in shown
    )  # the triage: no rule knows the fake trainer's error
    cli.assert_nothing_left()


def test_a_killed_worker_is_named_although_the_job_hangs(cli: FakeCli) -> None:
    process = cli.start("--set", "trainer.total_training_steps=500", "--set", "fake.hang_on_death=true")
    cli.wait_for_step(process, 2)
    victim = cli.workers()[0]
    psutil.Process(victim).kill()
    killed_at = time.monotonic()
    assert process.wait(timeout=LIMIT_S) == 1
    assert time.monotonic() - killed_at < 60
    reason = cli.record["exit_reason"]
    assert "worker WorkerDict 'fakeWorkerDict_0:" in reason
    assert f"(pid {victim}, node" in reason
    assert "trains step 2" in reason
    assert f"(pid {victim}, node" in cli.output
    cli.assert_nothing_left()


def test_a_killed_engine_process_is_noticed_although_ray_knows_nothing_of_it(cli: FakeCli) -> None:
    process = cli.start("--set", "trainer.total_training_steps=500", "--set", "fake.engine=true")
    cli.wait_for_step(process, 1)
    time.sleep(3)  # a look at the process table
    worker = cli.workers()[0]
    (engine,) = psutil.Process(worker).children()
    engine.kill()
    assert process.wait(timeout=60) == 1
    assert "engine process 'sglang::scheduler" in cli.record["exit_reason"]
    assert f"(pid {engine.pid}, node" in cli.record["exit_reason"]
    cli.assert_nothing_left()


def test_a_killed_runner_leaves_nothing_running_and_can_be_resumed(cli: FakeCli) -> None:
    few = ("--set", "trainer.total_training_steps=6", "--set", "trainer.save_freq=2")
    process = cli.start(*few, "--set", "fake.step_seconds=1.0")
    cli.wait_for_step(process, 3)
    process.kill()
    process.wait(timeout=30)
    cli.wait_until(lambda: cli.record["status"] == "failed", limit_s=60)
    cli.wait_until(lambda: not cli.processes(), limit_s=30)
    assert f"the runner (process {process.pid}) was killed" in cli.record["exit_reason"]
    cli.assert_nothing_left()
    assert any(cli.run_dir.glob("logs/ray/attempt-1/worker-*.out"))

    assert cli.run("--resume", cli.run_dir.name[:12]) == 0
    assert "goes on at step 3" in cli.output
    assert cli.steps() == [0, 1, 2, 3, 4, 5, 6]
    attempts = cli.record["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["failed", "succeeded"]
    assert [attempt["resumed_from_step"] for attempt in attempts] == [0, 2]
    cli.assert_nothing_left()


def test_ctrl_c_ends_everything_even_when_pressed_twice(cli: FakeCli) -> None:
    process = cli.start("--set", "trainer.total_training_steps=500")
    cli.wait_for_step(process, 1)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=90) == 130
    assert cli.record["status"] == "interrupted"
    assert "Traceback" not in cli.output
    cli.assert_nothing_left()


def test_sigterm_while_ray_starts_ends_everything(cli: FakeCli) -> None:
    process = cli.start()
    cli.wait_until(lambda: "Ray starts" in cli.output)
    time.sleep(1.0)
    process.terminate()
    assert process.wait(timeout=90) == 130
    assert cli.record["exit_reason"] == "interrupted by SIGTERM"
    cli.assert_nothing_left()


def test_a_run_that_is_not_what_it_claims_fails(cli: FakeCli) -> None:
    assert cli.run("--set", "fake.backend=gloo") == 1
    assert "backend 'gloo' (expected 'mccl')" in cli.record["exit_reason"]
    cli.assert_nothing_left()


def test_a_taken_port_is_bad_input(cli: FakeCli) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.run("--ray-port", str(port)) == 2
    assert f"port {port} is taken" in cli.output
    assert "next step" in cli.output
    assert not (cli.folder / "runs").exists()


def test_two_runs_on_one_host_do_not_touch_each_other(
    cli: FakeCli, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = FakeCli(tmp_path_factory.mktemp("other"))
    try:
        lasting = other.start("--set", "trainer.total_training_steps=500")
        other.wait_for_step(lasting, 1)
        assert cli.run() == 0
        seen = max(other.steps())
        other.wait_until(lambda: max(other.steps()) > seen, limit_s=30)
        assert lasting.poll() is None
    finally:
        other.close()
    other.assert_nothing_left()


def test_launch_script_does_the_job_by_hand(cli: FakeCli) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    assert cli.run("--dry-run") == 0
    paths = os.pathsep.join([str(ROOT), str(FIXTURES)])
    done = subprocess.run(
        [str(cli.run_dir / "launch.sh"), "--help"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "FAKE_API_KEY" in done.stderr
    assert done.returncode != 0
    done = subprocess.run(
        [str(cli.run_dir / "launch.sh"), "--help"],
        env={**os.environ, "PYTHONPATH": paths, "FAKE_API_KEY": "opensesame"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "--config-path" in done.stdout
