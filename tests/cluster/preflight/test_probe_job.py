"""The job's driver, on a Ray that is played by threads; the real one is in tests/integration/test_afterwards_hosts.py."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_musa.cluster.preflight import probe_job
from verl_musa.cluster.preflight.probe_job import MIB, Probe, Worker

HOSTS = {"node1": "127.0.0.1", "node2": "127.0.0.2", "node3": "127.0.0.3"}


class Played:
    """As much of Ray as the driver uses. ``places`` are the addresses that bundles end up on."""

    __version__ = "2.58.0"

    def __init__(self, places: Sequence[str], *, fits: bool = True) -> None:
        self.places, self.fits = list(places), fits
        self.bundles: list[dict[str, float]] = []
        self.strategy = ""
        self._pool = ThreadPoolExecutor(32)
        self._here = threading.local()
        self.util = SimpleNamespace(get_node_ip_address=lambda: self._here.address)

    def get_runtime_context(self) -> Any:
        accelerators = {"GPU": ["0"]}
        return SimpleNamespace(
            get_node_id=lambda: self._here.address, get_accelerator_ids=lambda: accelerators
        )

    def placement_group(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        self.bundles, self.strategy = bundles, strategy
        return SimpleNamespace(wait=lambda _: self.fits)

    def placement_group_table(self, _: Any) -> dict[str, Any]:
        return {"bundles_to_node_id": {index: f"id-{address}" for index, address in enumerate(self.places)}}

    def nodes(self) -> list[dict[str, str]]:
        return [{"NodeID": f"id-{address}", "NodeManagerAddress": address} for address in self.places]

    def put(self, value: Any) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(value)
        return found

    def get(self, one: Future[Any], timeout: float | None = None) -> Any:
        return one.result(timeout)

    def wait(
        self, calls: list[Future[Any]], *, num_returns: int, timeout: float
    ) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(calls)
        done, left = wait(calls, timeout=timeout)
        return [one for one in calls if one in done], [one for one in calls if one in left]

    def remote(self, **_: Any) -> Callable[[type], Any]:
        def made(kind: type) -> Any:
            def options(scheduling_strategy: Any) -> Any:
                return SimpleNamespace(
                    remote=lambda: self._actor(kind(), self.places[scheduling_strategy.index])
                )

            return SimpleNamespace(options=options)

        return made

    def _actor(self, one: Any, address: str) -> Any:
        def method(name: str) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                self._here.address = address
                return getattr(one, name)(*given, **named)

            return SimpleNamespace(remote=lambda *given, **named: self._pool.submit(call, *given, **named))

        names = [name for name in dir(type(one)) if not name.startswith("_")]
        return SimpleNamespace(**{name: method(name) for name in names})


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    def make(places: Sequence[str] = tuple(HOSTS.values()), **options: Any) -> Played:
        ray = Played(places, **options)
        groups, strategies = (
            ModuleType("ray.util.placement_group"),
            ModuleType("ray.util.scheduling_strategies"),
        )
        groups.placement_group = ray.placement_group  # type: ignore[attr-defined]
        groups.placement_group_table = ray.placement_group_table  # type: ignore[attr-defined]
        strategies.PlacementGroupSchedulingStrategy = (  # type: ignore[attr-defined]
            lambda placement_group, placement_group_bundle_index: SimpleNamespace(group=placement_group, index=placement_group_bundle_index)
        )  # fmt: skip
        for name, module in (
            ("ray", ray),
            ("ray.util", ModuleType("ray.util")),
            (groups.__name__, groups),
            (strategies.__name__, strategies),
        ):
            monkeypatch.setitem(sys.modules, name, module)
        return ray

    return make


def _probe(**changes: Any) -> Probe:
    given = {
        "hosts": HOSTS,
        "devices": 1,
        "seconds": 60,
        "backend": "gloo",
        "object_bytes": 8 * MIB,
        "reduce_bytes": MIB,
        "pair_bytes": MIB,
        "platform": False,
    }
    return Probe({**given, **changes}, lambda _: None)


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_reduce(_: Worker, rank: int, world: int, store: str, **given: Any) -> dict[str, Any]:
        assert store.startswith("tcp://127.0.0.1:")
        return {"seconds": 0.1, "right": rank < world, "backend": given["backend"]}

    monkeypatch.setattr(Worker, "all_reduce", all_reduce)
    monkeypatch.setattr(Worker, "platform", lambda _: {"device": "musa"})


def test_every_host_has_a_worker_and_all_steps_report(played: Callable[..., Played]) -> None:
    ray = played(["127.0.0.3", "127.0.0.1", "127.0.0.2"])
    probe = _probe(platform=True)
    probe.run()
    report = probe.report
    assert report["errors"] == {}
    assert (ray.strategy, ray.bundles) == ("STRICT_SPREAD", [{"CPU": 1.0, "GPU": 1.0}] * 3)
    assert {name: one["facts"]["address"] for name, one in report["hosts"].items()} == HOSTS
    assert all(0 <= one["object_s"] < 5 for one in report["hosts"].values())
    assert all(
        one["all_reduce"]["right"] and one["platform"] == {"device": "musa"}
        for one in report["hosts"].values()
    )
    assert {(pair["from"], pair["to"]) for pair in report["pairs"]} == {
        (a, b) for a in HOSTS for b in HOSTS if a != b
    }
    assert all(0 < pair["seconds"] < 5 for pair in report["pairs"])


def test_without_devices_none_is_asked_for(played: Callable[..., Played]) -> None:
    ray = played()
    _probe(devices=0).run()
    assert ray.bundles == [{"CPU": 1.0}] * 3


def test_one_host_alone_has_no_pairs(played: Callable[..., Played]) -> None:
    played(["127.0.0.1"])
    probe = _probe(hosts={"node1": "127.0.0.1"})
    probe.run()
    assert probe.report["pairs"] == []
    assert "errors" not in probe.report["hosts"]["node1"]


def test_hosts_that_ray_cannot_place_on(played: Callable[..., Played]) -> None:
    played(fits=False)
    probe = _probe()
    probe.run()
    assert "Ray cannot place" in probe.report["errors"]["place"]
    assert probe.report["hosts"] == {}


def test_a_worker_that_does_not_start_is_told_of_its_host(
    played: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = played()
    facts, hung = Worker.facts, threading.Event()

    def slow(self: Worker) -> dict[str, Any]:
        if ray.util.get_node_ip_address() == "127.0.0.3":
            hung.wait(30)
        return facts(self) if ray.util.get_node_ip_address() != "127.0.0.3" else {}

    monkeypatch.setattr(Worker, "facts", slow)
    probe = _probe()
    monkeypatch.setattr(probe, "left", lambda _: 2.0)
    probe.run()
    hung.set()
    assert probe.report["hosts"]["node3"] == {"errors": {"place": "no answer in time"}}
    assert set(probe.report["hosts"]) == set(HOSTS)
    assert "some hosts have no worker" in probe.report["errors"]["all_reduce"]


def test_an_object_that_does_not_come_is_told_of_its_host(
    played: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = played()
    take, hung = Worker.take, threading.Event()

    def slow(self: Worker, boxed: Sequence[Any]) -> float:
        if ray.util.get_node_ip_address() == "127.0.0.2":
            hung.wait(30)
            return -1.0
        return take(self, boxed)

    monkeypatch.setattr(Worker, "take", slow)
    probe = _probe()
    monkeypatch.setattr(probe, "left", lambda _: 2.0)
    start = time.monotonic()
    probe._place()
    probe.report["step"] = "object"
    probe._object()
    assert time.monotonic() - start < 20
    hung.set()
    assert probe.report["hosts"]["node2"]["errors"] == {"object": "no answer in time"}
    assert "object_s" in probe.report["hosts"]["node1"]


def test_a_worker_that_fails_is_told_by_its_last_line(
    played: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    played()

    def broken(_: Worker) -> dict[str, Any]:
        raise ImportError("ray::Worker.platform()\n  File x\nImportError: no plugin")

    monkeypatch.setattr(Worker, "platform", broken)
    probe = _probe(platform=True)
    probe.run()
    assert probe.report["hosts"]["node1"]["errors"] == {"platform": "ImportError: no plugin"}


def test_a_pair_that_cannot_talk(played: Callable[..., Played], monkeypatch: pytest.MonkeyPatch) -> None:
    played()
    send = Worker.send

    def cut(self: Worker, address: str, port: int, size: int, limit: float) -> float:
        return -1.0 if address == "127.0.0.2" else send(self, address, port, size, limit)

    monkeypatch.setattr(Worker, "send", cut)
    probe = _probe()
    probe.run()
    assert {(pair["from"], pair["to"]) for pair in probe.report["pairs"] if pair["seconds"] < 0} == {
        ("node1", "node2"),
        ("node3", "node2"),
    }


@pytest.mark.integration
def test_two_processes_sum_a_tensor_for_real() -> None:
    port = Worker().free_port("127.0.0.1")
    code = (
        "import json,sys; from verl_musa.cluster.preflight.probe_job import Worker; "
        f"print(json.dumps(Worker().all_reduce(int(sys.argv[1]), 2, 'tcp://127.0.0.1:{port}', size=1 << 20, backend='gloo', limit=60)))"
    )
    import json

    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE) for rank in (0, 1)
    ]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        said = json.loads(out.splitlines()[-1])
        assert said["right"]
        assert 0 < said["seconds"] < 60


def test_main_prints_a_report_that_can_be_found_again(
    played: Callable[..., Played], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    from verl_musa.cluster.preflight.afterwards import _report

    ray = played()
    monkeypatch.setattr(ray, "init", lambda **_: None, raising=False)
    given = {
        "hosts": HOSTS,
        "devices": 1,
        "seconds": 60,
        "backend": "gloo",
        "object_bytes": MIB,
        "reduce_bytes": MIB,
        "pair_bytes": MIB,
        "platform": False,
    }
    monkeypatch.setenv(probe_job.PARAMETERS, json.dumps(given))
    assert probe_job.main() == 0
    assert _report(capsys.readouterr().out)["step"] == "end"
