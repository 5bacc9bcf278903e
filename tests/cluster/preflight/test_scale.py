"""Many hosts: nothing grows with their square but what each of them does by itself."""

from __future__ import annotations

import importlib.util
import io
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from verl_musa.checks import Status
from verl_musa.cluster.preflight import Bounds, look, render
from verl_musa.recipe import Site

BENCH = Path(__file__).parents[3] / "ci" / "bench" / "preflight.py"
PHASES = 3


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_preflight", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_preflight"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [1, 8, 64])
def test_ssh_is_called_once_for_each_host_and_phase(bench: Any, count: int, tmp_path: Path) -> None:
    hosts = bench.hosts_of(count)
    remote = bench.Played(hosts)
    said: list[str] = []
    site = Site.model_validate(
        {"shared": str(tmp_path), "networks": {"training": f"{bench.TRAINING}0/24"}, "limits": {"nofile": 1024, "nproc": 1024, "shm_gib": 0.001, "free_gib": 0.01}}
    )  # fmt: skip
    start = time.process_time()
    found = look(site, hosts, None, remote, said.append, bounds=Bounds(facts=120.0))
    cpu = time.process_time() - start
    phases = PHASES if count > 1 else PHASES - 1  # one host alone has nobody to call
    assert set(remote.calls.values()) == {phases}
    assert not [result for result in found.results if result.status is Status.FAIL]
    assert {result.host for result in found.results} == {host.name for host in hosts}
    assert f"asking {count} hosts" in said
    assert cpu < 20, "of this machine alone; 64 hosts take about 5 s"
    text = io.StringIO()
    render(found.results, Console(file=text, width=160))
    lines = text.getvalue().splitlines()
    assert len(lines) < 150, "the table does not grow with the hosts"
    assert lines[-1].startswith(f"{len({r.check for r in found.results})} checks on {count} hosts: ")
