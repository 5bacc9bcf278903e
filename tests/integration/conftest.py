"""Whole jobs through the command line, as a user starts them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from ci.engine import NoEngineError, engine
from verl_musa.cluster.processes import OwnedProcesses

JOB_LIMIT_S = 900
RECIPE = "qwen3-tiny-dense"
ROOT = Path(__file__).resolve().parents[2]
ENGINE_PACKAGES = ("docker.io", "mmdebstrap")
IMAGE_LIMIT_S = 3000
"""One build of the simulated image: half an hour was seen on two processors with seven times the work that they could do."""


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the run's metrics, one mapping a step; empty before the first step."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def record_of(run_dir: Path) -> dict[str, Any]:
    """Return the run's `run.json`."""
    record: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
    return record


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Return the live processes of this run."""
    return OwnedProcesses(run_dir.name).refresh()


@dataclass
class Cli:
    """The `verl-musa` command with its own runs folder; ends what it started."""

    runs: Path
    log: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    earlier_runs: int = 0

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """Start `verl-musa run …` in the background with its output in ``log``."""
        self.earlier_runs = len(self.run_dirs())
        command = [str(Path(sys.executable).with_name("verl-musa")), "run", *arguments]
        with self.log.open("ab") as stream:
            process = subprocess.Popen(
                [*command, "--runs-dir", str(self.runs)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
            )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **env: str) -> int:
        """Run `verl-musa run …` to its end and return the exit code."""
        return self.start(*arguments, **env).wait(timeout=JOB_LIMIT_S)

    def run_dirs(self) -> list[Path]:
        """Return the run directories made so far, oldest first."""
        return sorted(path.parent for path in self.runs.glob("*/*/run.json"))

    def wait_for_step(self, process: subprocess.Popen[bytes], step: int) -> Path:
        """Wait until the run started last has logged ``step`` and return its directory."""
        deadline = time.monotonic() + JOB_LIMIT_S
        while time.monotonic() < deadline:
            assert process.poll() is None, f"ended early with {process.returncode}:\n{self.output()[-4000:]}"
            for run_dir in self.run_dirs()[self.earlier_runs :]:
                if any(row["step"] >= step for row in metrics_of(run_dir)):
                    return run_dir
            time.sleep(0.2)
        raise AssertionError(f"no step {step} within {JOB_LIMIT_S} s:\n{self.output()[-4000:]}")

    def killed_after_step(self, step: int, *arguments: str) -> Path:
        """Start a run, kill the runner without warning once ``step`` is saved, and return its directory when all has ended."""
        process = self.start(*arguments)
        run_dir = self.wait_for_step(process, step)
        marker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
        assert marker.read_text().strip() == str(step)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        deadline = time.monotonic() + 90
        while processes_of(run_dir) or record_of(run_dir)["status"] == "running":
            assert time.monotonic() < deadline, processes_of(run_dir)
            time.sleep(0.5)
        assert record_of(run_dir)["status"] == "failed"
        return run_dir

    def output(self) -> str:
        """Return what the command has printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        """Interrupt what still runs, then make sure that it is gone."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(timeout=120)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    command = Cli(runs=tmp_path / "runs", log=tmp_path / "output.txt")
    try:
        yield command
    finally:
        command.close()
        sys.stdout.write(command.output()[-20000:])


@dataclass(frozen=True)
class ImageTool:
    """``verl-musa image`` and ``docker`` beside the engine of this session; bases and packages are kept in one folder."""

    docker_host: str
    folder: Path

    def call(self, *command: str, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command that finds the engine."""
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "DOCKER_HOST": self.docker_host, "PYTHONPATH": paths, **env}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=IMAGE_LIMIT_S, cwd=ROOT, env=environment, input=stdin)  # fmt: skip

    def image(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``verl-musa image …``."""
        entry = "import sys; from verl_musa.cli import main; sys.exit(main(sys.argv[1:]))"
        return self.call(sys.executable, "-c", entry, "image", *arguments, **env)

    def build(self, *arguments: str, **env: str) -> dict[str, Any]:
        """Build an image; return what the command says about it."""
        done = self.image("build", *arguments, "--json", "--cache", str(self.folder / "cache"), **env)
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{done.stdout[-2000:]}"
        sys.stdout.write(done.stderr)  # the seconds of each step
        found: dict[str, Any] = json.loads(done.stdout)
        return found


class SimImage(NamedTuple):
    """The simulated image that this session built.

    Attributes:
        docker_host: address of the engine that has it.
        reference: its name there.
        id: its id.
    """

    docker_host: str
    reference: str
    id: str


def _missing() -> list[str]:
    return [name for name in ("dockerd", "mmdebstrap") if not shutil.which(name, path="/usr/sbin:/usr/bin")]


def _install_engine() -> None:
    """On a CI machine what builds images is installed; elsewhere nobody expects a test to do that."""
    apt = shutil.which("apt-get")
    if os.environ.get("CI") and os.geteuid() == 0 and apt:
        for arguments in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *ENGINE_PACKAGES]):  # fmt: skip
            subprocess.run([apt, *arguments], check=False, timeout=900, capture_output=True)


@pytest.fixture(scope="session")
def image_tool() -> Iterator[ImageTool]:
    """An engine of this session's own, ended and removed with it; skips with the reason where none can start.

    That of DOCKER_HOST where VERL_MUSA_TEST_IMAGE names an image in it.
    """
    if "VERL_MUSA_TEST_IMAGE" in os.environ:
        with tempfile.TemporaryDirectory(prefix="verl-musa-images-") as kept:
            yield ImageTool(os.environ["DOCKER_HOST"], Path(kept))
        return
    if _missing():
        _install_engine()
    if _missing():
        pytest.skip(f"no image was built: {' and '.join(_missing())} not installed (apt-get install {' '.join(ENGINE_PACKAGES)})")  # fmt: skip
    if os.geteuid() != 0:
        pytest.skip("no image was built: starting dockerd takes root")
    folder = Path(tempfile.mkdtemp(prefix="verl-musa-images-"))
    try:
        with engine(folder / "engine") as address:
            yield ImageTool(address, folder)
    except NoEngineError as error:
        pytest.skip(f"no image was built: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def sim_build(image_tool: ImageTool) -> dict[str, Any]:
    """What ``verl-musa image build sim --json`` said; built once in a session."""
    return image_tool.build("sim")


@pytest.fixture(scope="session")
def sim_image(request: pytest.FixtureRequest) -> SimImage:
    """The verified simulated image, for whoever starts containers of it.

    VERL_MUSA_TEST_IMAGE names one that the engine of DOCKER_HOST has already, for a developer who does not want to wait for a build.
    """
    if reference := os.environ.get("VERL_MUSA_TEST_IMAGE"):
        command = ["docker", "image", "inspect", "--format", "{{.Id}}", reference]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return SimImage(os.environ["DOCKER_HOST"], reference, done.stdout.strip())
    tool, built = request.getfixturevalue("image_tool"), request.getfixturevalue("sim_build")
    return SimImage(tool.docker_host, built["reference"], built["id"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first pays for the build; test_four_hosts.py has the time for it."""
    for item in items:
        if {"image_tool", "sim_image"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(2 * IMAGE_LIMIT_S), append=False)
