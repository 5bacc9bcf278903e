from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ray")

import ray

from verl_musa.device import gate_servers


class Checker:
    """Stands in for SGLang's WeightChecker."""

    def _get_model(self) -> torch.nn.Module:
        return torch.nn.Linear(2, 2)

    def _parallelism_info(self) -> Any:
        return SimpleNamespace(model_dump=lambda: {"tp_rank": 0})


def test_our_action_is_answered_and_others_go_to_sglang() -> None:
    found = gate_servers.answer(None, Checker(), gate_servers.ACTION, allow_quant_error=False)
    assert set(found["checksums"]) == {"weight", "bias"}
    assert found["parallelism_info"] == {"tp_rank": 0}

    def original(checker: Checker, action: str, **kwargs: Any) -> Any:
        return type(checker).__name__, action, kwargs

    passed = gate_servers.answer(original, Checker(), "compare", allow_quant_error=True)
    assert passed == ("Checker", "compare", {"allow_quant_error": True})


def test_vllms_workers_write_their_digests(tmp_path: Path) -> None:
    module: Any = ModuleType("utils")
    module.vLLMColocateWorkerExtension = type("Extension", (), {})
    gate_servers.extend_vllm(module)
    worker = module.vLLMColocateWorkerExtension()
    worker.rank, worker.model_runner = 1, SimpleNamespace(model=torch.nn.Linear(2, 2))
    worker.verl_musa_write_digests(str(tmp_path))
    assert set(json.loads((tmp_path / "rank-1.json").read_text())) == {"weight", "bias"}


class _Handler(BaseHTTPRequestHandler):
    status, asked = 200, ""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked = body["action"]
        ranks = [{"parallelism_info": {"tp_rank": rank}, "checksums": {"w": f"d{rank}"}} for rank in (0, 1)]
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps({"success": self.status == 200, "ranks": ranks}).encode())

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield ("127.0.0.1", server.server_port)
    server.shutdown()
    thread.join()
    server.server_close()


def replica(address: tuple[str, int]) -> Any:
    method = SimpleNamespace(remote=lambda: address)
    return SimpleNamespace(servers=[SimpleNamespace(get_server_address=method)])


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", lambda value, timeout=None: value)  # noqa: ARG005


def test_every_rank_of_every_replica_is_read(
    address: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "status", 200)
    found = gate_servers.read([replica(address), replica(address)], "sglang", tmp_path)
    assert found["replica 1 rank 1"] == {"w": "d1"}
    assert len(found) == 4
    assert _Handler.asked == gate_servers.ACTION


def test_a_server_that_refuses_or_is_gone_is_an_error(
    address: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "status", 400)
    with pytest.raises(gate_servers.ServerError, match="HTTP 400"):
        gate_servers.read([replica(address)], "sglang", tmp_path)
    with pytest.raises(gate_servers.ServerError, match="does not answer"):
        gate_servers.read([replica(("127.0.0.1", 1))], "sglang", tmp_path)


def test_an_unknown_rollout_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(gate_servers.ServerError, match="rollout 'hf'"):
        gate_servers.read([], "hf", tmp_path)


def test_old_files_of_vllm_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    folder = tmp_path / "replica-0"
    folder.mkdir()
    (folder / "rank-7.json").write_text("{}")

    def rpc(method: str, args: tuple[str, ...]) -> None:
        assert method == "verl_musa_write_digests"
        (Path(args[0]) / "rank-0.json").write_text('{"w": "d"}')

    server = SimpleNamespace(collective_rpc=SimpleNamespace(remote=rpc))
    found = gate_servers.read([SimpleNamespace(servers=[server])], "vllm", tmp_path)
    assert found == {"replica 0 rank 0": {"w": "d"}}
