from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_musa.device import sglang_release as module
from verl_musa.device.sglang_release import HostMemorySaver


class Runner:
    """A model with tied weights and a buffer, and a key-value cache of two layers."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False))
        self.model[1].weight = self.model[0].weight
        self.model.register_buffer("table", torch.arange(6.0))
        cache = [torch.ones(16, 2, 4) for _ in range(4)]
        self.token_to_kv_pool = SimpleNamespace(k_buffer=cache[:2], v_buffer=cache[2:])


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def saver(runner: Runner) -> HostMemorySaver:
    made = HostMemorySaver()
    made.bind(runner)
    return made


def storage_bytes(tensors: Any) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_weights_are_freed_and_come_back_poisoned(runner: Runner, saver: HostMemorySaver) -> None:
    weight = runner.model[0].weight
    saver.pause("weights")
    assert storage_bytes([weight, *runner.model.buffers()]) == 0
    assert storage_bytes(runner.token_to_kv_pool.k_buffer) > 0
    saver.resume("weights")
    assert weight.shape == (8, 4)
    assert weight.isnan().all()
    with torch.no_grad():
        weight.copy_(torch.ones(8, 4))
    assert torch.equal(runner.model[1].weight, torch.ones(8, 4))  # still tied


def test_the_cache_is_freed_and_comes_back_empty(runner: Runner, saver: HostMemorySaver) -> None:
    pool = runner.token_to_kv_pool
    saver.pause("kv_cache")
    assert storage_bytes([*pool.k_buffer, *pool.v_buffer]) == 0
    assert not runner.model[0].weight.isnan().any()
    saver.resume("kv_cache")
    assert all(torch.equal(buffer, torch.zeros(16, 2, 4)) for buffer in [*pool.k_buffer, *pool.v_buffer])


def test_phases_out_of_order_are_refused(saver: HostMemorySaver) -> None:
    with pytest.raises(RuntimeError, match="weights: resumed without a release"):
        saver.resume("weights")
    saver.pause("weights")
    with pytest.raises(RuntimeError, match="weights: released twice"):
        saver.pause("weights")


def test_graphs_are_left_alone(saver: HostMemorySaver) -> None:
    saver.pause("cuda_graph")
    saver.resume("cuda_graph")


def test_a_release_before_the_model_is_known_is_refused() -> None:
    with pytest.raises(RuntimeError, match="before this adapter knows its model runner"):
        HostMemorySaver().pause("weights")


def test_what_was_given_back_is_written_beside_the_proofs(
    saver: HostMemorySaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_MUSA_RUN_DIR", str(tmp_path))
    for tag in ("kv_cache", "weights"):
        saver.pause(tag)
    saver.resume("weights")
    (file,) = (tmp_path / "logs" / "proof").glob("released-*.json")
    facts = json.loads(file.read_text(encoding="utf-8"))
    # Tied weights count once: 8 x 4 and 6 floats; four cache buffers of 16 x 2 x 4.
    assert facts == {
        "releases": 2,
        "resumes": 1,
        "bytes": {"kv_cache": 4 * 128 * 4, "weights": (32 + 6) * 4},
        "still_released": ["kv_cache"],
    }


def test_the_factory_gives_ours_only_where_a_saver_is_asked_for() -> None:
    assert isinstance(module.create(lambda _: "noop", enable=True), HostMemorySaver)
    assert module.create(lambda _: "noop", enable=False) == "noop"


def test_the_release_of_a_scheduler_names_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = HostMemorySaver()
    monkeypatch.setattr(module, "_saver", saver)
    runner = Runner()
    manager = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))

    def release(given: Any, request: str) -> tuple[Any, str]:
        saver.pause("weights")
        return given, request

    assert module.bind_and_release(release, manager, "request") == (manager, "request")
    assert storage_bytes([runner.model[0].weight]) == 0


def test_it_works_within_the_context_managers_that_sglang_uses(saver: HostMemorySaver) -> None:
    with saver.configure_subprocess(), saver.region("weights", enable_cpu_backup=True):
        saver.check_validity("release_memory_occupation")
    with saver.disable(), saver.cuda_graph(tag="x"):
        saver.check_validity("resume_memory_occupation")
    assert saver.enabled
