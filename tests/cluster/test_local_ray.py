from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from verl_musa.cluster import local_ray
from verl_musa.cluster.jobs_api import RayApiError
from verl_musa.cluster.local_ray import LocalRay, RayPlan, make_temp_dir, plan_ray, ray_environment
from verl_musa.cluster.processes import TAG
from verl_musa.errors import HostError

PLAN = RayPlan(Path("t"), 1111, 2222, 3333, 4444, num_cpus=8, num_gpus=2, object_store_bytes=5)


class FakeApi:
    def __init__(self, gpus: int) -> None:
        self.gpus = gpus

    def version(self) -> dict[str, Any]:
        return {"session_name": "session_x"}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"state": "ALIVE", "resources_total": {"GPU": self.gpus}}, {"state": "DEAD"}]


class SilentApi:
    def version(self) -> dict[str, Any]:
        raise RayApiError("connection refused")


def started(code: str, api: Any, log: Path) -> LocalRay:
    with log.open("wb") as stream:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=stream)
    ray = LocalRay(PLAN, process, log)
    ray.api = api
    return ray


def test_the_command_is_private_and_sized() -> None:
    command = PLAN.command()
    assert command[0] == sys.executable
    for flag in (
        "--head",
        "--block",
        "--dashboard-host=127.0.0.1",
        "--num-gpus=2",
        "--num-cpus=8",
        "--port=1111",
        # Free ports for the workers: Ray's default range is the same for every Ray of a host.
        "--min-worker-port=0",
        "--max-worker-port=0",
    ):
        assert flag in command
    assert PLAN.url == "http://127.0.0.1:2222"


def test_ports_are_chosen_unless_asked_for(tmp_path: Path) -> None:
    plan = plan_ray(num_cpus=1, num_gpus=1, temp_dir=tmp_path)
    assert len({plan.port, plan.dashboard_port, plan.client_port, plan.agent_port}) == 4
    with pytest.raises(HostError, match="--dashboard-port 1 "):
        plan_ray(num_cpus=1, num_gpus=1, temp_dir=tmp_path, dashboard_port=1)


def test_the_object_store_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, size in ((1, 256 * 2**20), (8 * 2**30, 512 * 2**20), (2**40, 2**30)):
        monkeypatch.setattr(local_ray, "available_memory", lambda free=free: free)
        assert local_ray.object_store_bytes() == size


def test_the_environment_carries_the_tag_and_no_foreign_ray() -> None:
    base = {"RAY_ADDRESS": "elsewhere", "PATH": "p", "no_proxy": "a.example"}
    environment = ray_environment("id-1", {"VERL_PLATFORM": "musa"}, base)
    assert environment[TAG] == "id-1"
    assert environment["PATH"] == "p"
    assert "RAY_ADDRESS" not in environment
    assert environment["VERL_PLATFORM"] == "musa"
    assert set(environment["no_proxy"].split(",")) == {"a.example", "127.0.0.1", "localhost"}


def test_the_temporary_folder_is_short_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_temp_dir()
    folder.rmdir()
    assert len(str(folder)) <= local_ray.LONGEST_TEMP_DIR
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 40)))
    with pytest.raises(HostError, match="too long"):
        make_temp_dir()


def test_ready_means_that_the_devices_are_offered(tmp_path: Path) -> None:
    ray = started("import time; time.sleep(60)", FakeApi(2), tmp_path / "log")
    try:
        ray.wait_ready(timeout_s=5)
        assert ray.session_dir == Path("t/session_x")
        ray.api = FakeApi(1)  # type: ignore[assignment]
        with pytest.raises(HostError, match=r"not ready within 0 s|1 living nodes with 1 devices"):
            ray.wait_ready(timeout_s=0.1, pause=lambda _: None)
    finally:
        ray._process.kill()
        ray._process.wait(timeout=10)


def test_a_ray_that_ends_or_stays_silent_is_reported_with_its_log(tmp_path: Path) -> None:
    ray = started("print('port in use'); raise SystemExit(3)", SilentApi(), tmp_path / "log")
    ray._process.wait(timeout=20)
    with pytest.raises(HostError, match=r"(?s)ended with code 3.*port in use"):
        ray.wait_ready(timeout_s=5)
    ray = started("import time; time.sleep(60)", SilentApi(), tmp_path / "log")
    try:
        with pytest.raises(HostError, match="connection refused"):
            ray.wait_ready(timeout_s=0.2, pause=lambda _: None)
    finally:
        ray._process.kill()
        ray._process.wait(timeout=10)


def test_a_dashboard_that_died_at_its_start_is_told_at_once(tmp_path: Path) -> None:
    ray = started("import time; time.sleep(60)", SilentApi(), tmp_path / "log")
    vars(ray)["plan"] = replace(ray.plan, temp_dir=tmp_path)
    logs = tmp_path / "session_2026" / "logs"
    logs.mkdir(parents=True)
    try:
        assert local_ray.dashboard_failure(None) is None
        assert local_ray.dashboard_failure(logs.parent) is None
        (logs / "dashboard.log").write_text(
            "RuntimeError: Module MetricsHead failed to start. Timeout after 30.0 seconds.\n"
        )
        with pytest.raises(HostError, match=r"dashboard died at its start: .*MetricsHead failed to start"):
            ray.wait_ready(timeout_s=60)
    finally:
        ray._process.kill()
        ray._process.wait(timeout=10)


def test_no_port_of_rays_own_metrics_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Seen: the dashboard was given 44227, where it already serves its metrics, and died while Ray said that it runs."""
    monkeypatch.setattr(
        local_ray, "free_ports", lambda count: [44227, 44217, 50001, 50002, 50003, 50004][:count]
    )
    plan = local_ray.plan_ray(num_cpus=1, num_gpus=1, temp_dir=tmp_path)
    ports = {plan.port, plan.dashboard_port, plan.client_port, plan.agent_port}
    assert ports == {50001, 50002, 50003, 50004}
