"""Whole runs of the fake trainer on several "hosts" of this machine, with a real Ray: detached, stopped, resumed, and with a host killed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
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
# Nightly: eight minutes, and test_four_hosts.py does the same with the real trainer.
pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(1200)]

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROOT = FIXTURES.parents[1]
_spec = importlib.util.spec_from_file_location("fake_hosts", FIXTURES / "fake_hosts.py")
assert _spec is not None
assert _spec.loader is not None
fake_hosts = importlib.util.module_from_spec(_spec)
sys.modules["fake_hosts"] = fake_hosts
_spec.loader.exec_module(fake_hosts)
LIMIT_S = 420
MANY = 4000
"""Steps of a run that is not to end by itself."""


@dataclass
class Cli:
    """``verl-musa`` beside hosts of this machine."""

    hosts: Any
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.hosts.folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, str(FIXTURES / "run_fake.py"), *arguments],
                cwd=self.hosts.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.hosts.environment(ROOT, FIXTURES),
            )
        self.started.append(process)
        return process

    def train(self, *arguments: str) -> subprocess.Popen[bytes]:
        sets = ("--set", "trainer.save_freq=2", "--set", "fake.step_seconds=0.5")
        return self.start(
            "run", "--no-gate", str(FIXTURES / "fake_recipe"), "--devices-per-node", "1", *sets, *arguments
        )

    def do(self, *arguments: str) -> int:
        return self.start(*arguments).wait(timeout=LIMIT_S)

    @property
    def output(self) -> str:
        return (self.hosts.folder / "output.txt").read_text(errors="replace")

    @property
    def run_dir(self) -> Path:
        (found,) = (self.hosts.folder / "shared" / "runs" / "fake_recipe").iterdir()
        return found

    @property
    def record(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run_dir / "run.json").read_text())
        return value

    def steps(self) -> list[int]:
        try:
            lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
        except (FileNotFoundError, ValueError):
            return []
        return [json.loads(line)["step"] for line in lines]

    def saved(self) -> int:
        """Step of the last checkpoint that is finished."""
        return int((self.run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())

    def wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not ready():
            assert time.monotonic() < deadline, self.output[-4000:]
            time.sleep(0.2)

    def supervisor(self) -> psutil.Process:
        return psutil.Process(json.loads((self.run_dir / "logs" / "supervisor.json").read_text())["pid"])

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait(timeout=60)
        folder = str(self.hosts.folder)
        for found in psutil.process_iter():
            try:
                if any(folder in word for word in found.cmdline()):
                    found.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        for left in self.hosts.processes():
            left.kill()


@pytest.fixture
def cli() -> Iterator[Cli]:
    folder = Path(tempfile.mkdtemp(prefix="v"))
    made = Cli(fake_hosts.FakeHosts.make(folder, 32000))
    try:
        yield made
    finally:
        made.close()
        sys.stdout.write(made.output[-8000:])
        shutil.rmtree(folder, ignore_errors=True)


def test_a_killed_host_is_named_and_the_run_ends_whole_on_a_spare_while_nobody_looks(cli: Cli) -> None:
    viewer = cli.train(
        "--hosts",
        "one,two,three",
        "--nodes",
        "2",
        "--retries",
        "1",
        "--set",
        "trainer.total_training_steps=150",
    )
    cli.wait_until(lambda: "step 5/150" in cli.output)
    viewer.send_signal(signal.SIGINT)
    assert viewer.wait(timeout=60) == 130
    name = cli.run_dir.name
    assert f"verl-musa follow {name}" in cli.output
    assert cli.supervisor().is_running()

    cli.hosts.kill("two")
    killed = time.monotonic()
    cli.wait_until(lambda: bool(cli.record["attempts"][0]["lost"]))
    assert time.monotonic() - killed < 300  # with the end of the attempt: cluster down, logs, triage
    assert cli.do("follow", name) == 0
    record = cli.record
    assert record["status"] == "succeeded"
    assert [attempt["status"] for attempt in record["attempts"]] == ["failed", "succeeded"]
    assert "host two is lost" in record["attempts"][0]["lost"]["two"]
    assert [host["name"] for host in record["attempts"][1]["hosts"]] == ["one", "three"]
    assert record["attempts"][1]["resumed_from_step"] >= 4
    assert cli.steps() == list(range(151))
    report = (cli.run_dir / "report.md").read_text()
    assert "host two is lost" in report
    logs = cli.run_dir / "logs" / "ray"
    assert any((logs / "attempt-2" / "three").glob("worker-*.out"))
    assert any((logs / "attempt-1" / "one").glob("worker-*.out"))
    assert cli.hosts.processes() == []


def test_stop_ends_job_and_cluster_and_resume_goes_on(cli: Cli) -> None:
    viewer = cli.train("--hosts", "one,two", "--set", f"trainer.total_training_steps={MANY}")
    cli.wait_until(lambda: f"step 5/{MANY}" in cli.output)
    viewer.kill()  # a closed terminal
    assert cli.do("status", cli.run_dir.name) == 0
    assert "host two: Ray up" in cli.output
    assert cli.do("stop", cli.run_dir.name) == 0
    assert cli.record["status"] == "interrupted"
    assert "stopped by" in cli.record["exit_reason"] or "SIGTERM" in cli.record["exit_reason"]
    assert cli.hosts.processes() == []
    assert cli.do("stop", cli.run_dir.name) == 0

    last = cli.saved() + 3
    assert cli.do("resume", cli.run_dir.name, "--set", f"trainer.total_training_steps={last}") == 0
    assert "its hashes hold" in cli.output
    assert cli.record["attempts"][1]["resumed_from_step"] >= 4
    assert cli.steps() == list(range(last + 1))
    assert cli.hosts.processes() == []


def test_a_killed_supervisor_is_told_stopped_and_resumed(cli: Cli) -> None:
    viewer = cli.train("--hosts", "one,two", "--set", f"trainer.total_training_steps={MANY}")
    cli.wait_until(lambda: f"step 3/{MANY}" in cli.output)
    os.kill(cli.supervisor().pid, signal.SIGKILL)
    assert viewer.wait(timeout=60) == 1
    assert "has ended without a word; its job may still run" in cli.output
    name = cli.run_dir.name
    assert cli.do("status", name) == 1
    assert "abandoned" in cli.output
    assert cli.hosts.processes() != []
    assert cli.do("stop", name) == 0
    assert cli.hosts.processes() == []
    assert cli.record["status"] == "interrupted"
    last = cli.saved() + 3
    assert cli.do("resume", name, "--set", f"trainer.total_training_steps={last}") == 0
    assert cli.steps() == list(range(last + 1))
