"""``verl-musa cluster`` with a real Ray on "hosts" of this machine: up, again, a stranger refused, a killed host told, down."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("fake_hosts", ROOT / "tests" / "fixtures" / "fake_hosts.py")
assert _spec is not None
assert _spec.loader is not None
fake_hosts = importlib.util.module_from_spec(_spec)
sys.modules["fake_hosts"] = fake_hosts
_spec.loader.exec_module(fake_hosts)

RUN = "import sys; from verl_musa.cli import main; sys.exit(main())"


@pytest.fixture
def hosts() -> Iterator[Any]:
    folder = Path(tempfile.mkdtemp(prefix="v"))  # short: Ray's sockets lie below it
    made = fake_hosts.FakeHosts.make(folder, 31000)
    try:
        yield made
    finally:
        for process in made.processes():
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def run(hosts: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=hosts.folder,
        env=hosts.environment(ROOT),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_a_cluster_from_up_to_down(hosts: Any) -> None:
    up = ("cluster", "up", "--nodes", "2", "--devices-per-node", "2", "--cpus-per-node", "4")
    done = run(hosts, *up, "--id", "mine")
    assert done.returncode == 0, done.stderr
    assert done.stderr.index("one: is up") < done.stderr.index("two: joins")
    assert "cluster mine is up" in done.stdout

    before = {process.pid for process in hosts.processes()}
    stranger = run(hosts, *up, "--id", "other")
    assert stranger.returncode == 2
    assert "cluster mine of" in stranger.stderr
    assert "verl-musa cluster down mine" in stranger.stderr
    assert before <= {process.pid for process in hosts.processes()}

    status = json.loads(run(hosts, "cluster", "status", "--json").stdout)
    assert [(row["host"], row["role"], row["state"]) for row in status["clusters"][0]["hosts"]] == [
        ("one", "head", "up"),
        ("two", "worker", "up"),
    ]

    hosts.kill("two")
    lost = run(hosts, "cluster", "status", "mine")
    assert lost.returncode == 3
    assert "No route to host" in " ".join(lost.stdout.split())
    assert run(hosts, "cluster", "down", "mine").returncode == 3
    hosts.revive("two")
    assert run(hosts, "cluster", "down", "mine").returncode == 0
    assert hosts.processes() == []
    assert run(hosts, "cluster", "down", "mine").returncode == 0
    assert "no clusters" in run(hosts, "cluster", "status").stdout
