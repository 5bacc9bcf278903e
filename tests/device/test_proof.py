from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_musa.device import proof
from verl_musa.device.expect import EXPECT_ENV, RUN_DIR_ENV, ExpectationError, own_file

FACTS: dict[str, Any] = {
    "role": "fsdp-language_model",
    "platform": "musa",
    "device": "musa",
    "device_name": "MUSA simulator",
    "device_index": 1,
    "backend": "mccl",
    "simulated": True,
    "pid": os.getpid(),
    "node": "host",
    "rank": 1,
    "world_size": 2,
    "local_rank": "1",
    "accelerators": ["1"],
}


@pytest.fixture(autouse=True)
def _a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(EXPECT_ENV, json.dumps({"device": "musa", "backend": "mccl", "simulated": True}))
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    monkeypatch.setenv("MUSA_VISIBLE_DEVICES", "0,1")


def _found(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    monkeypatch.setattr(proof, "find_facts", lambda role, **_: {**FACTS, "role": role, **changed})


def test_proof_is_written_with_all_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _found(monkeypatch)
    proof.prove("fsdp-language_model")
    path = tmp_path / "logs" / "proof" / own_file("fsdp-language_model")
    assert json.loads(path.read_text(encoding="utf-8")) == FACTS


class _Musa:
    device_name = "musa"
    device_module = SimpleNamespace()

    def is_available(self) -> bool:
        return False

    def communication_backend_name(self) -> str:
        return "mccl"


def test_a_process_group_of_the_host_only_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_backend_config=lambda: "cpu:gloo",
        get_rank=lambda: 0,
        get_world_size=lambda: 1,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    monkeypatch.setitem(sys.modules, "verl.plugin.platform", SimpleNamespace(get_platform=_Musa))
    monkeypatch.setenv("RANK", "3")
    facts = proof.find_facts("reward-worker", grouped=False)
    assert (facts["backend"], facts["rank"]) == ("mccl", 3)
    with pytest.raises(ExpectationError, match="no backend for device 'musa'"):
        proof.find_facts("fsdp-language_model")


def test_the_sizes_of_model_parallel_groups_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _found(monkeypatch)
    assert proof.prove("megatron-language_model", parallel={"tensor": 2})["parallel"] == {"tensor": 2}
    assert "parallel" not in proof.prove("fsdp-language_model", parallel={})


@pytest.mark.parametrize(
    ("name", "value"), [("device", "cuda"), ("backend", "gloo"), ("simulated", False), ("device_index", 0)]
)
def test_a_mismatch_stops_the_worker_and_leaves_no_proof(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: Any
) -> None:
    _found(monkeypatch, **{name: value})
    with pytest.raises(ExpectationError, match=f"found {name.replace('_', ' ')}"):
        proof.prove("fsdp-language_model")
    assert not list((tmp_path / "logs").rglob("*.json")) if (tmp_path / "logs").exists() else True


def test_a_worker_that_sees_only_its_own_device_counts_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSA_VISIBLE_DEVICES", "1")
    _found(monkeypatch, device_index=0)
    assert proof.prove("fsdp-language_model")["device_index"] == 0


def test_a_worker_without_an_accelerator_of_its_own_may_use_any(monkeypatch: pytest.MonkeyPatch) -> None:
    _found(monkeypatch, accelerators=[], device_index=0)
    assert proof.prove("sglang-server")["accelerators"] == []


def test_without_an_expectation_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXPECT_ENV)
    _found(monkeypatch, device="cpu", backend="gloo")
    assert proof.prove("x")["device"] == "cpu"


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        (
            SimpleNamespace(mccl=SimpleNamespace(counters=lambda: {"allreduce": {"calls": 3}})),
            {"allreduce": {"calls": 3}},
        ),
        (SimpleNamespace(), None),
    ],
)
def test_counters_are_written_or_null(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: Any, expected: Any
) -> None:
    monkeypatch.setitem(sys.modules, "torch_musa", package)
    proof.write_counters()
    path = tmp_path / "logs" / "proof" / own_file("mccl")
    assert json.loads(path.read_text(encoding="utf-8")) == {"pid": os.getpid(), "counters": expected}


def test_backend_is_the_one_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    torch.__dict__["distributed"] = SimpleNamespace(get_backend_config=lambda: "cpu:gloo,musa:mccl")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert proof.group_backend("musa") == "mccl"
    with pytest.raises(ExpectationError, match="no backend for device 'npu'"):
        proof.group_backend("npu")
