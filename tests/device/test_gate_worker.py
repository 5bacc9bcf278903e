from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("verl")

from verl_musa.device import gate_worker


class Engine:
    """verl's engine interface over a plain module."""

    def __init__(self, module: torch.nn.Module, *, offload: bool = False, chunks: bool = False) -> None:
        self.module = [module] if chunks else module
        self.is_param_offload_enabled = offload
        self.moves: list[str] = []

    def to(self, *, device: str, model: bool, optimizer: bool, grad: bool) -> None:
        assert model
        assert not optimizer
        assert not grad
        self.moves.append(device)

    def get_per_tensor_param(self) -> Any:
        module = self.module[0] if isinstance(self.module, list) else self.module
        return iter(module.state_dict().items()), None


def worker(**options: bool) -> Any:
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 2))
    with torch.no_grad():
        module[1].bias.zero_()
    actor = SimpleNamespace(actor=SimpleNamespace(engine=Engine(module, **options)))
    return SimpleNamespace(actor=None, worker_dict={"actor_rollout": actor})


@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"offload": True}])
def test_every_weight_changes_and_comes_back_bit_for_bit(
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_worker, "get_device_name", lambda: "musa")
    holder = worker(**options)
    before = gate_worker.export_digests(holder, ["bfloat16"], 1)
    assert gate_worker.perturb(holder) == 3
    during = gate_worker.export_digests(holder, ["bfloat16"], 1)
    assert before.keys() == during.keys()
    assert all(before[name] != during[name] for name in before)
    assert gate_worker.restore(holder) == 3
    assert gate_worker.export_digests(holder, ["bfloat16"], 1) == before
    engine = gate_worker.actor_of(holder).actor.engine
    # Loaded before each change, released after each export.
    assert engine.moves == (["cpu", "musa", "cpu", "musa", "cpu"] if options.get("offload") else [])


def test_restoring_what_was_never_kept_is_an_error() -> None:
    with pytest.raises(AttributeError):
        gate_worker.restore(worker())


def test_a_worker_without_an_actor_is_an_error() -> None:
    with pytest.raises(LookupError, match="SimpleNamespace"):
        gate_worker.actor_of(SimpleNamespace(worker_dict={"critic": SimpleNamespace(actor=None)}))


def test_the_generators_go_on_as_though_nothing_had_drawn() -> None:
    holder = SimpleNamespace()
    torch.manual_seed(5)
    random.seed(5)
    gate_worker.keep_random_state(holder)
    draw = random.random
    first = (torch.rand(3).tolist(), draw())
    gate_worker.restore_random_state(holder)
    assert (torch.rand(3).tolist(), draw()) == first
    assert not vars(holder)


class Client:
    def __init__(self) -> None:
        self.limits: list[Any] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        assert request_id
        self.limits.append(sampling_params.get("max_tokens"))
        return SimpleNamespace(token_ids=[*prompt_ids, 9])


@pytest.mark.parametrize("limit", [None, 4])
def test_requests_are_noted_and_capped_only_while_recording(limit: int | None) -> None:
    holder = SimpleNamespace(llm_client=Client())
    gate_worker.start_recording(holder, limit)
    asked = {"temperature": 1.0}
    asyncio.run(holder.llm_client.generate("a", prompt_ids=[1, 2], sampling_params=asked))
    assert gate_worker.stop_recording(holder) == [
        {"request": "a", "prompt_ids": [1, 2], "token_ids": [1, 2, 9]}
    ]
    asyncio.run(holder.llm_client.generate("b", prompt_ids=[1], sampling_params=asked))
    assert holder.llm_client.limits == [limit, None]
    assert asked == {"temperature": 1.0}
    assert not hasattr(holder, "verl_musa_calls")
