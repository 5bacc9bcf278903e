"""Fetching against a double of both hubs on this machine: their routes, headers and failures."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from verl_musa.data.prepare_hub import Request, fetch
from verl_musa.errors import DataError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = b'{"question": "1+1?", "answer": "#### 2"}\n'
FILE = "main/train.jsonl"


@dataclass
class Double:
    """Serves one data set, owner/sums, as both hubs do."""

    endpoint: str = ""
    asked: list[str] = field(default_factory=list)
    damage: bool = False
    failures: int = 0


@pytest.fixture
def double(  # noqa: C901  (a server's routes)
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Double]:
    state = Double()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            state.asked.append(f"{self.command} {self.path}")
            url = urlsplit(self.path)
            if state.failures:
                state.failures -= 1
                self.answer(503, b"busy")
            elif url.path.startswith("/api/v1/"):
                self.modelscope(url.path, {name: value[0] for name, value in parse_qs(url.query).items()})
            else:
                self.huggingface(url.path)

        def huggingface(self, path: str) -> None:
            if path in {"/api/datasets/owner/sums", "/api/datasets/owner/sums/revision/v1"}:
                info = {"id": "owner/sums", "sha": COMMIT, "siblings": [{"rfilename": FILE}]}
                self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
            elif path == f"/datasets/owner/sums/resolve/{COMMIT}/{FILE}":
                etag = hashlib.sha256(CONTENT).hexdigest()
                self.answer(200, CONTENT, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
            else:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound" if "sums" in path else "RepoNotFound"})

        def modelscope(self, path: str, query: dict[str, str]) -> None:
            base = "/api/v1/datasets/owner/sums/repo"
            if path == f"{base}/tree" and query["Revision"] in {"master", "v1"}:
                entry = {
                    "Path": FILE,
                    "Type": "blob",
                    "Revision": COMMIT,
                    "Sha256": hashlib.sha256(CONTENT).hexdigest(),
                }
                others = [{"Path": f"other-{n}.txt", "Type": "blob"} for n in range(149)]
                page = int(query["PageNumber"]) - 1
                files = [*others, entry][page * 100 : page * 100 + 100]
                body = {"Code": 200, "Success": True, "Data": {"Files": files, "TotalCount": 150}}
                self.answer(200, json.dumps(body).encode())
            elif path == base and query["FilePath"] == FILE:
                self.answer(200, CONTENT[:-5] if state.damage else CONTENT)
            else:
                self.answer(404, json.dumps({"Code": 404, "Message": "no such data set"}).encode())

        def answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    yield state
    server.shutdown()
    server.server_close()


def request(
    double: Double, hub: str, revision: str | None, *files: str, repository: str = "owner/sums"
) -> Request:
    return Request(hub, repository, revision, files or (FILE,), double.endpoint)


@pytest.mark.parametrize("hub", ["huggingface", "modelscope"])
def test_a_file_comes_with_the_commit_that_it_is_of(hub: str, double: Double) -> None:
    said: list[str] = []
    (found,) = fetch(request(double, hub, None), said.append)
    assert found.file.read_bytes() == CONTENT
    assert found.origin == f"{hub}:owner/sums@{COMMIT}/{FILE}"
    assert said


def test_a_tag_is_resolved_and_a_commit_is_not_asked_for(double: Double) -> None:
    (found,) = fetch(request(double, "huggingface", "v1"), print)
    assert f"@{COMMIT}/" in found.origin
    double.asked.clear()
    fetch(request(double, "huggingface", COMMIT), print)
    assert not [line for line in double.asked if "/api/" in line]
    (found,) = fetch(request(double, "modelscope", "v1"), print)
    assert found.origin == f"modelscope:owner/sums@v1/{FILE}"


def test_what_is_there_is_not_fetched_again(double: Double) -> None:
    fetch(request(double, "modelscope", None), print)
    double.asked.clear()
    (found,) = fetch(request(double, "modelscope", None), print)
    assert found.file.read_bytes() == CONTENT
    assert not [line for line in double.asked if "FilePath" in line]


def test_a_damaged_file_is_refused_and_not_kept(double: Double, tmp_path: Path) -> None:
    double.damage = True
    with pytest.raises(DataError, match="arrived damaged"):
        fetch(request(double, "modelscope", None), print)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_busy_hub_is_asked_again(double: Double) -> None:
    double.failures = 2
    (found,) = fetch(request(double, "modelscope", None), print)
    assert found.file.read_bytes() == CONTENT


@pytest.mark.parametrize("hub", ["huggingface", "modelscope"])
@pytest.mark.parametrize(
    ("repository", "file", "revision"),
    [("owner/other", FILE, None), ("owner/sums", "missing.jsonl", None), ("owner/sums", FILE, "no-such-tag")],
)
def test_what_the_hub_does_not_have(
    hub: str, repository: str, file: str, revision: str | None, double: Double
) -> None:
    with pytest.raises(DataError) as caught:
        fetch(request(double, hub, revision, file, repository=repository), print)
    assert caught.value.where == f"{hub}:{repository}"
    assert "--train or --val" in (caught.value.fix or "")


@pytest.mark.parametrize("hub", ["huggingface", "modelscope"])
def test_a_hub_that_does_not_answer(hub: str, double: Double) -> None:
    nowhere = Request(hub, "owner/sums", None, (FILE,), "http://127.0.0.1:9")
    with pytest.raises(DataError, match="cannot be fetched"):
        fetch(nowhere, print)
    with pytest.raises(DataError, match="no such hub"):
        fetch(request(double, "kaggle", None), print)


def test_a_missing_package_is_named(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(DataError, match="huggingface-hub is not installed"):
        fetch(request(double, "huggingface", None), print)
