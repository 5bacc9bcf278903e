"""``verl-musa run qwen3-tiny-dense --hosts …`` on hosts that are really there: a whole run; stop and resume; a host killed in the middle.

The command runs in the head, as a user's would. Four hosts where memory allows, else two and a spare: containers of the image that this
session builds; network namespaces with this environment where no engine starts, or with VERL_MUSA_HOSTS_KIND=netns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ci.hosts import SIMULATOR, Hosts, NoHostsError, Shape, faults, up, with_stack
from ci.hosts.model import IMAGE_PYTHON, SHARED

from .conftest import SimImage

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "qwen3-tiny-dense"
GIB = 1024**3
HOST_GIB = 4.5
"""One host with a trainer, an SGLang server and Ray, measured on the simulated device; the head takes a little more."""
LIMIT_S = 1500
FEW = (
    "--set",
    "trainer.test_freq=-1",
    "--set",
    "trainer.val_before_train=false",
    "--set",
    "trainer.save_freq=1",
)


def _nodes() -> int:
    asked = os.environ.get("VERL_MUSA_TEST_NODES")
    return int(asked) if asked else 4 if psutil.virtual_memory().available > 4 * HOST_GIB * GIB else 2


@dataclass
class Place:
    """The hosts, and ``verl-musa`` in the first of them."""

    hosts: Hosts
    nodes: int
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        verl_musa = Path(self.hosts.shape.python or IMAGE_PYTHON).with_name("verl-musa")
        command = self.hosts.ssh_command(
            self.hosts.head, [str(verl_musa), *arguments, "--site", f"{SHARED}/login/site.yaml"]
        )
        with (self.hosts.shared / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        self.started.append(process)
        return process

    def do(self, *arguments: str) -> int:
        return self.start(*arguments).wait(timeout=LIMIT_S)

    def train(self, steps: int, *arguments: str, nodes: int | None = None) -> subprocess.Popen[bytes]:
        (self.hosts.shared / "output.txt").write_bytes(b"")
        return self.start("run", f"{SHARED}/recipes/{RECIPE.name}", "--nodes", str(nodes or self.nodes), "--devices-per-node", "1",
                          *FEW, "--set", f"trainer.total_training_steps={steps}", *arguments)  # fmt: skip

    @property
    def output(self) -> str:
        return (self.hosts.shared / "output.txt").read_text(errors="replace")

    @property
    def run_dir(self) -> Path:
        """The last run, as this machine sees it."""
        return max((self.hosts.shared / "runs" / RECIPE.name).iterdir())

    @property
    def record(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run_dir / "run.json").read_text())
        return value

    def steps(self) -> list[int]:
        path = self.run_dir / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not ready():
            assert time.monotonic() < deadline, self.output[-6000:]
            time.sleep(0.5)

    def wait_for_step(self, process: subprocess.Popen[bytes], step: int) -> None:
        def reached() -> bool:
            assert process.poll() is None, self.output[-6000:]
            return f"step {step}/" in self.output

        self.wait_until(reached)

    def assert_nothing_left(self) -> None:
        for host in self.hosts.hosts:
            assert "raylet" not in host.run(["ps", "-eo", "args"]), host.name


def _wish(request: pytest.FixtureRequest, nodes: int) -> tuple[Shape, str | None, str | None]:
    """Shape, kind and engine: hosts of the image, else this environment in network namespaces."""
    shape = Shape(count=nodes + 1, memory="6g", shm="1g")
    kind = os.environ.get("VERL_MUSA_HOSTS_KIND")
    if kind != "netns":
        try:
            image: SimImage = request.getfixturevalue("sim_image")
        except pytest.skip.Exception as error:
            sys.stdout.write(f"hosts without an image: {error}\n")
        else:
            return replace(shape, image=image.reference), kind, image.docker_host
    return with_stack(shape, SIMULATOR), kind, None


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    nodes = _nodes()
    shape, kind, engine = _wish(request, nodes)
    folder = tmp_path_factory.mktemp("hosts")
    try:
        with up(shape, kind=kind, docker_host=engine, folder=folder) as hosts:
            login = hosts.shared / "login"
            login.mkdir()
            for name in ("id_ed25519", "known_hosts", "site.yaml"):
                text = (hosts.folder / name).read_text().replace(str(hosts.folder), f"{SHARED}/login")
                (login / name).write_text(text)
            (login / "id_ed25519").chmod(0o600)
            shutil.copytree(
                RECIPE, hosts.shared / "recipes" / RECIPE.name
            )  # a user's own, which no image has
            made = Place(hosts, nodes)
            yield made
            for process in made.started:
                if process.poll() is None:
                    process.kill()
                    process.wait(timeout=60)
            sys.stdout.write(made.output[-12000:])
    except NoHostsError as error:
        pytest.skip(f"no hosts were brought up: {error}")


def assert_trained(place: Place, names: list[str], steps: int, *, attempt: int = 1) -> None:
    """The last run succeeded: one proven worker on each of these hosts, all steps, the logs of all hosts, and nothing left."""
    record = place.record
    assert record["status"] == "succeeded"
    assert record["device"]["proven"] is True
    assert record["device"]["count"] == len(names)
    assert [host["name"] for host in record["attempts"][attempt - 1]["hosts"]] == names
    assert {worker["node"] for worker in record["device"]["workers"]} == set(names)
    assert record["device"]["mccl_calls"]
    assert place.steps() == list(range(1, steps + 1))
    for name in names:
        assert any((place.run_dir / "logs" / "ray" / f"attempt-{attempt}" / name).glob("raylet.out"))
    place.assert_nothing_left()


@pytest.mark.nightly
def test_a_run_on_all_hosts_succeeds_and_leaves_its_directory_and_nothing_else(place: Place) -> None:
    assert place.train(3).wait(timeout=LIMIT_S) == 0, place.output[-6000:]
    assert_trained(place, [f"host{number}" for number in range(1, place.nodes + 1)], 3)


@pytest.mark.long
def test_stop_and_resume(place: Place) -> None:
    process = place.train(4, nodes=2)  # two, for it trains twice
    place.wait_for_step(process, 2)
    process.kill()  # the user's terminal
    name = place.run_dir.name
    assert place.do("stop", name) == 0, place.output[-6000:]
    assert place.record["status"] == "interrupted"
    place.assert_nothing_left()
    assert place.do("resume", name) == 0, place.output[-6000:]
    assert "its hashes hold" in place.output
    assert place.record["attempts"][1]["resumed_from_step"] >= 1
    assert_trained(place, ["host1", "host2"], 4, attempt=2)


def test_a_host_killed_in_the_middle_is_named_and_the_run_ends_whole(place: Place) -> None:
    process = place.train(4, "--retries", "1")
    place.wait_for_step(process, 2)
    victim = place.hosts.hosts[place.nodes - 1]
    with faults.killed_host(place.hosts, victim):
        killed = time.monotonic()
        place.wait_until(lambda: bool(place.record["attempts"][0]["lost"]))
        assert time.monotonic() - killed < 90
        assert process.wait(timeout=LIMIT_S) == 0, place.output[-6000:]
    record = place.record
    assert victim.name in record["attempts"][0]["lost"]
    assert f"host {victim.name} is lost" in (place.run_dir / "report.md").read_text()
    assert [attempt["status"] for attempt in record["attempts"]] == ["failed", "succeeded"]
    left = [f"host{number}" for number in range(1, place.nodes)]
    assert_trained(place, [*left, place.hosts.hosts[place.nodes].name], 4, attempt=2)
