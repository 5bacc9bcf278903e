"""What is said of a Ray that is up: every outcome, and the bound of the whole."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster.preflight.conftest import put
from verl_musa.checks import Result, Status
from verl_musa.cluster.jobs_api import Job, JobsApi, RayApiError
from verl_musa.cluster.preflight.afterwards import LOOKS_AT, Seen, Wish, judge, look_afterwards
from verl_musa.cluster.preflight.probe_job import MARK, PARAMETERS, Probe, Worker, rounds

HOSTS = {f"node{number}": f"198.51.100.{number}" for number in (1, 2, 3)}
WISH = Wish(HOSTS, devices=2, device="musa", simulated=True)
OK, WARN, FAIL, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.UNKNOWN


def _nodes() -> list[dict[str, Any]]:
    return [
        {"node_ip": address, "state": "ALIVE", "resources_total": {"GPU": 2.0}} for address in HOSTS.values()
    ]


def _report() -> dict[str, Any]:
    hosts = {
        name: {
            "facts": {"address": address, "ray": "2.58.0", "python": "3.11.2"},
            "object_s": 0.1,
            "all_reduce": {"seconds": 0.01, "right": True, "backend": "gloo"},
            "platform": {"device": "musa", "backend": "mccl", "count": 2, "simulated": True, "sum": 8.0},
        }
        for name, address in HOSTS.items()
    }
    pairs = [
        {"from": one, "to": other, "seconds": 0.01, "bytes": 4 * 2**20}
        for one in HOSTS
        for other in HOSTS
        if one != other
    ]
    return {"step": "end", "hosts": hosts, "pairs": pairs, "errors": {}}


def _judged(
    wish: Wish = WISH, *, report: Mapping[str, Any] | None = None, **changes: Any
) -> dict[tuple[str, str], Result]:
    fields: dict[str, Any] = {"first": _nodes(), "second": _nodes(), "job": Job("SUCCEEDED", "", 0)}
    seen = Seen(**{**fields, **changes}, report=_report() if report is None else report)
    return {(result.check, result.host): result for result in judge(wish, seen)}


def _changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    report = _report()
    for path, value in changes:
        put(report, path, value)
    return report


def test_all_is_well() -> None:
    found = _judged()
    assert {result.status for result in found.values()} == {OK}
    assert {check for check, _ in found} == set(LOOKS_AT)
    assert {host for check, host in found if check != "ray.job"} == set(HOSTS)
    assert found["net.allreduce", "node2"].evidence == "gloo: 4 MiB in 10 ms, 559 MB/s of bus bandwidth"


def _node(index: int, **changes: Any) -> list[dict[str, Any]]:
    nodes = _nodes()
    nodes[index].update(changes)
    return nodes


@pytest.mark.parametrize(
    ("nodes", "host", "status", "says"),
    [
        (_node(1, state="DEAD", state_message="health check failed"), "node2", FAIL, "198.51.100.2 is DEAD: health check failed"),
        (_nodes()[:2], "node3", FAIL, "198.51.100.3 is not in Ray; it has 198.51.100.1, 198.51.100.2"),
        (_node(1, resources_total={"GPU": 1.0}), "node2", FAIL, "198.51.100.2 offers 1 devices, not 2"),
        (_node(1, resources_total={}), "node2", FAIL, "offers 0 devices"),
        (_node(1, node_ip="192.0.2.2"), "node1", FAIL, "192.0.2.2 is in Ray, but none of the hosts"),
        (None, "node1", UNKNOWN, "the dashboard gave no answer"),
    ],
)  # fmt: skip
def test_nodes_at_once_and_later(nodes: Any, host: str, status: Status, says: str) -> None:
    for check, changes in (("ray.nodes", {"first": nodes}), ("ray.health", {"second": nodes})):
        found = _judged(**changes)
        assert found[check, host].status is status
        assert says.replace("the dashboard", "dashboard") in found[check, host].evidence
        other = "ray.health" if check == "ray.nodes" else "ray.nodes"
        assert {r.status for (c, _), r in found.items() if c == other} == {OK}


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"job": None, "job_error": "POST /api/jobs/: HTTP 500"}, FAIL, "not taken: POST"),
        ({"job": Job("RUNNING", "", None), "report": _changed(("step", "pairs"))}, FAIL, "not ended within 90 s, at pairs"),
        ({"job": None, "report": {}}, FAIL, "not ended within 90 s, at its start"),
        ({"job": Job("FAILED", "no", 1), "report": {}, "logs": "Traceback\nModuleNotFoundError: verl_musa\n"}, FAIL, "FAILED: ModuleNotFoundError: verl_musa"),
        ({"job": Job("FAILED", "Unexpected error", 1), "report": {}}, FAIL, "FAILED: Unexpected error"),
        ({"report": _changed(("errors/pairs", "the time was over"))}, WARN, "pairs: the time was over"),
    ],
)  # fmt: skip
def test_the_job(changes: dict[str, Any], status: Status, says: str) -> None:
    result = _judged(**changes)["ray.job", "node1"]
    assert result.status is status
    assert says in result.evidence


def test_a_host_without_a_worker_is_named() -> None:
    report = _changed(("hosts/node3", ...), ("errors/place", "TimeoutError: cannot place"))
    found = {host: result for (check, host), result in _judged(report=report).items() if check == "ray.job"}
    assert list(found) == ["node3"]
    assert found["node3"].status is FAIL
    assert "no worker on node3; place: TimeoutError" in found["node3"].evidence


@pytest.mark.parametrize(
    ("check", "changes", "status", "says"),
    [
        ("ray.same", [("hosts/node2/facts/ray", "2.57.0")], FAIL, "Ray 2.57.0, Python 3.11.2; the head has Ray 2.58.0"),
        ("ray.object", [("hosts/node2/object_s", ...), ("hosts/node2/errors", {"object": "no answer in time"})], FAIL, "8 MiB from the head: no answer in time"),
        ("net.allreduce", [("hosts/node2/all_reduce", ...), ("hosts/node2/errors", {"all_reduce": "Connection closed by peer"})], FAIL, "gloo: Connection closed"),
        ("net.allreduce", [("hosts/node2/all_reduce/right", False)], FAIL, "the sum is wrong"),
        ("device.platform", [("hosts/node2/platform/device", "cuda")], FAIL, "verl chose simulated cuda, not simulated musa"),
        ("device.platform", [("hosts/node2/platform/simulated", False)], FAIL, "verl chose musa, not simulated musa"),
        ("device.platform", [("hosts/node2/platform", ...), ("hosts/node2/errors", {"platform": "ImportError: x"})], FAIL, "ImportError: x"),
        ("device.platform", [("hosts/node2/platform", ...), ("hosts/node2/errors", {"platform": "no answer in time"})], UNKNOWN, "not imported in time"),
    ],
)  # fmt: skip
def test_what_workers_report(check: str, changes: list[tuple[str, Any]], status: Status, says: str) -> None:
    found = _judged(report=_changed(*changes))
    assert found[check, "node2"].status is status
    assert says in found[check, "node2"].evidence
    assert found[check, "node2"].fix
    assert {r.status for (c, host), r in found.items() if c == check and host != "node2"} == {OK}


@pytest.mark.parametrize(
    ("slow", "host", "seconds", "status", "says"),
    [
        ([("node2", "node1"), ("node2", "node3")], "node2", 1.0, WARN, "node2 to node1 4.2 MB/s, node2 to node3 4.2 MB/s; the median is 419.4"),
        ([("node1", "node2"), ("node3", "node2")], "node2", 1.0, WARN, "node1 to node2"),
        ([("node1", "node2"), ("node3", "node2")], "node2", -1.0, FAIL, "node1 to node2 none"),
        ([("node1", "node3")], "node1", 1.0, WARN, "node1 to node3"),
        ([("node1", "node3"), ("node3", "node1"), ("node3", "node2")], "node3", 1.0, WARN, "node1 to node3 4.2 MB/s, node3 to node1"),
    ],
)  # fmt: skip
def test_slow_pairs_are_named(
    slow: list[tuple[str, str]], host: str, seconds: float, status: Status, says: str
) -> None:
    report = _report()
    for pair in report["pairs"]:
        if (pair["from"], pair["to"]) in slow:
            pair["seconds"] = seconds
    found = {
        name: r
        for (check, name), r in _judged(report=report).items()
        if check == "net.pairs" and r.status is not OK
    }
    assert list(found) == [host]
    assert found[host].status is status
    assert says in found[host].evidence


def test_without_a_device_to_expect_the_platform_is_not_asked() -> None:
    assert not [check for check, _ in _judged(Wish(HOSTS, devices=2)) if check == "device.platform"]


class Api(JobsApi):
    """Ray's interface, without a Ray."""

    def __init__(self, *, ends: bool = True, alive: bool = True) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self._ends, self._alive = ends, alive

    def nodes(self) -> list[dict[str, Any]]:
        if not self._alive:
            raise RayApiError("GET /api/v0/nodes: refused")
        return _nodes()

    def submit(self, entrypoint: str, **given: Any) -> str:
        if not self._alive:
            raise RayApiError("POST /api/jobs/: refused")
        self.submitted.append({"entrypoint": entrypoint, **given})
        return str(given["submission_id"])

    def job(self, submission_id: str) -> Job:  # noqa: ARG002  (as the real one)
        return Job("SUCCEEDED", "", 0) if self._ends else Job("RUNNING", "", None)

    def job_logs(self, submission_id: str) -> str:  # noqa: ARG002
        return f'noise\n{MARK}{{broken\n{MARK}{json.dumps(_report())}\nmore noise\n{MARK}{{"cut'

    def stop(self, submission_id: str) -> None:
        self.stopped.append(submission_id)


def test_a_job_is_handed_in_with_its_parameters_and_its_report_is_read() -> None:
    api = Api()
    wish = Wish(
        HOSTS,
        2,
        {"env_vars": {"VERL_PLATFORM": "musa"}, "worker_process_setup_hook": "x.y"},
        python="/opt/a b/python",
        health_s=0,
    )
    results = look_afterwards(api, wish)
    assert {result.status for result in results} == {OK}
    (given,) = api.submitted
    assert given["entrypoint"] == "'/opt/a b/python' -m verl_musa.cluster.preflight.probe_job"
    assert given["runtime_env"]["worker_process_setup_hook"] == "x.y"
    assert given["runtime_env"]["env_vars"]["VERL_PLATFORM"] == "musa"
    assert json.loads(given["runtime_env"]["env_vars"][PARAMETERS])["hosts"] == HOSTS
    assert not api.stopped


def test_a_job_that_does_not_end_is_stopped_within_the_bound() -> None:
    api, start = Api(ends=False), time.monotonic()
    results = look_afterwards(api, Wish(HOSTS, 2, seconds=2.0, health_s=0))
    assert time.monotonic() - start < 6
    assert len(api.stopped) == 1
    assert any(result.check == "ray.job" and "not ended within 2 s" in result.evidence for result in results)


def test_a_dead_dashboard_is_said_in_time() -> None:
    start = time.monotonic()
    results = look_afterwards(Api(alive=False), Wish(HOSTS, 2, seconds=3.0, health_s=0))
    assert time.monotonic() - start < 6
    assert [(r.check, r.status) for r in results] == [
        ("ray.nodes", UNKNOWN),
        ("ray.health", UNKNOWN),
        ("ray.job", FAIL),
    ]


def test_rounds() -> None:
    names = ["a", "b", "c", "d"]
    found = rounds(names)
    assert len(found) == 3
    for turn in found:
        assert sorted(one for one, _ in turn) == names
        assert sorted(other for _, other in turn) == names
    assert len({pair for turn in found for pair in turn}) == 12
    assert rounds(["a"]) == []


def test_workers_send_to_each_other() -> None:
    worker = Worker()
    port = worker.listen("127.0.0.1", 2**20, 2)
    assert 0 < worker.send("127.0.0.1", port, 2**20, 5.0) < 5
    assert 0 < worker.send("127.0.0.1", port, 2**20, 5.0) < 5
    assert worker.send("127.0.0.1", port, 2**20, 1.0) == -1.0, "it took two only"
    assert worker.send("127.0.0.1", worker.free_port("127.0.0.1"), 10, 1.0) == -1.0


def test_a_step_that_fails_keeps_no_other_from_being_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    probe = Probe(
        {"hosts": HOSTS, "devices": 0, "seconds": 30, "platform": False},
        lambda report: told.append(report["step"]),
    )

    def broken() -> None:
        raise TimeoutError("Ray cannot place")

    for step in ("_place", "_object", "_pairs", "_all_reduce"):
        monkeypatch.setattr(probe, step, broken)
    probe.run()
    assert probe.report["errors"]["place"] == "TimeoutError: Ray cannot place"
    assert set(probe.report["errors"]) == {"place", "object", "pairs", "all_reduce"}
    assert told == ["place", "object", "pairs", "all_reduce", "platform", "end"]


def test_no_step_is_begun_once_the_time_is_over() -> None:
    probe = Probe({"hosts": HOSTS, "devices": 0, "seconds": 0.5, "platform": True}, lambda _: None)
    probe.run()
    assert set(probe.report["errors"].values()) == {"no time was left"}
