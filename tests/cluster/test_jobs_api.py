from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from verl_musa.cluster.jobs_api import JobsApi, RayApiError


@dataclass
class FakeRay:
    url: str
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    bodies: list[Any] = field(default_factory=list)


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if length:
                fake.bodies.append(json.loads(self.rfile.read(length)))
            status, value = fake.answers.get(
                f"{self.command} {self.path.partition('?')[0]}", (404, "no such page")
            )
            raw = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = answer  # noqa: N815  (the names that http.server wants)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeRay(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield fake
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def test_a_job_is_submitted_and_seen(ray: FakeRay) -> None:
    ray.answers["POST /api/jobs/"] = (200, {"job_id": "a", "submission_id": "a"})
    ray.answers["GET /api/jobs/a"] = (200, {"status": "FAILED", "message": "no", "driver_exit_code": 17})
    ray.answers["GET /api/jobs/a/logs"] = (200, {"logs": "said this"})
    ray.answers["POST /api/jobs/a/stop"] = (200, {"stopped": True})
    api = JobsApi(ray.url)
    assert api.submit("python x", submission_id="a", runtime_env={"env_vars": {}}, metadata={"m": "1"}) == "a"
    assert ray.bodies[0]["entrypoint"] == "python x"
    job = api.job("a")
    assert (job.status, job.message, job.exit_code, job.ended) == ("FAILED", "no", 17, True)
    assert api.job_logs("a") == "said this"
    api.stop("a")


def test_states_are_unwrapped(ray: FakeRay) -> None:
    ray.answers["GET /api/v0/actors"] = (200, {"result": True, "data": {"result": {"result": [{"pid": 3}]}}})
    ray.answers["GET /api/v0/nodes"] = (200, {"result": False, "msg": "timed out"})
    api = JobsApi(ray.url)
    assert api.actors() == [{"pid": 3}]
    with pytest.raises(RayApiError, match="timed out"):
        api.nodes()


def test_errors_of_every_kind_are_one_exception(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")  # must not be used
    ray.answers["GET /api/version"] = (200, "<html>")
    api = JobsApi(ray.url)
    with pytest.raises(RayApiError, match="not JSON"):
        api.version()
    with pytest.raises(RayApiError, match="HTTP 404"):
        api.job("b")
    with pytest.raises(RayApiError, match="/api/version"):
        JobsApi("http://127.0.0.1:1").version()
