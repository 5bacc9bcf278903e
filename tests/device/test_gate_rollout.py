from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

from verl_musa.device import gate_rollout, gate_worker


def call(request: str, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    return {"request": request, "prompt_ids": prompt, "token_ids": tokens}


def test_the_turns_of_a_trajectory_are_put_in_order_and_taken_once() -> None:
    calls = [call("a", [1, 4, 5, 7], [6]), call("b", [1], [8]), call("a", [1], [4, 5])]
    requests = gate_rollout._by_request(calls)
    first = gate_rollout._take_calls(requests, [1], [4, 5, 7, 6])
    assert [turn.prompt_ids for turn in first] == [[1], [1, 4, 5, 7]]
    assert gate_rollout._take_calls(requests, [1], [4, 5, 7, 6]) == []
    assert [turn.token_ids for turn in gate_rollout._take_calls(requests, [1], [8])] == [[8]]


def test_a_response_cut_at_its_length_is_still_found() -> None:
    requests = gate_rollout._by_request([call("a", [1], [4, 5, 6])])
    assert gate_rollout._take_calls(requests, [1], [4, 5])


def test_another_prompt_is_not_taken_for_it() -> None:
    requests = gate_rollout._by_request([call("a", [1], [4])])
    assert gate_rollout._take_calls(requests, [2], [4]) == []
    assert len(requests) == 1


def _states(monkeypatch: pytest.MonkeyPatch, *states: str) -> None:
    answers = [{"train": {"u": {"status": state}}} for state in states]
    monkeypatch.setattr(tq, "kv_list", lambda _partition: answers.pop(0) if len(answers) > 1 else answers[0])
    monkeypatch.setattr(gate_rollout, "POLL_S", 0.0)


def test_waiting_ends_when_all_prompts_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    _states(monkeypatch, "pending", "running", "finished")
    gate_rollout._wait(["u"])


def test_a_failed_agent_loop_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _states(monkeypatch, "failure")
    with pytest.raises(gate_rollout.RolloutError, match="agent loop failed"):
        gate_rollout._wait(["u"])


def test_waiting_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    _states(monkeypatch, "running")
    monkeypatch.setattr(gate_rollout, "ROLLOUT_S", 0.0)
    with pytest.raises(gate_rollout.RolloutError, match="0 of 1 prompts"):
        gate_rollout._wait(["u"])


@pytest.mark.parametrize(("length", "expected"), [(16, 16), (8192, gate_rollout.MAX_TOKENS)])
def test_long_responses_are_capped(length: int, expected: int) -> None:
    rollout = SimpleNamespace(response_length=length)
    trainer = SimpleNamespace(config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)))
    assert gate_rollout.response_length(trainer) == expected


class Queue:
    """A TransferQueue in memory, for one partition."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    def kv_list(self, partition: str) -> dict[str, Any]:
        return {partition: dict(self.tags)}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        assert partition_id == "train"
        columns = {
            name: torch.nested.as_nested_tensor([self.rows[key][name] for key in keys], layout=torch.jagged)
            for name in select_fields
        }
        return TensorDict(columns, batch_size=len(keys))

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        assert partition_id == "train"
        for key in keys:
            del self.tags[key]


class Trainer:
    """As much of verl's trainer as the gate's rollouts need; its agent loop answers each prompt [1, p] with [p, 9]."""

    def __init__(self, queue: Queue, recorded: list[dict[str, Any]]) -> None:
        self.queue, self.recorded = queue, recorded
        self.global_steps = 0
        self.train_dataset = [
            {
                "dummy_tensor": torch.tensor([0]),
                "raw_prompt": [{"role": "user", "content": f"{index}"}],
                "index": index,
            }
            for index in range(3)
        ]
        rollout = {
            "response_length": 4,
            "calculate_log_probs": True,
            "temperature": 1.0,
            "log_prob_micro_batch_size_per_gpu": 32,
        }
        self.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[object()])
        self.actor_rollout_wg = SimpleNamespace(
            _dispatch_info={}, _query_dispatch_info=lambda _: [0, 1], compute_log_prob=self.compute_log_prob
        )
        self.asleep = False
        self.meta: Any = None

    def _submit_batch_to_rollout(self, batch: Any) -> None:
        for place, uid in enumerate(batch["uid"]):
            prompt = int(batch["index"][place])
            self.queue.tags[uid] = {"status": "finished"}
            for session in range(int(batch["__rollout_n__"][place])):
                key = f"{uid}_{session}_0"
                self.queue.tags[key] = {"seq_len": 4}
                self.queue.rows[key] = {
                    "prompts": torch.tensor([1, prompt]),
                    "responses": torch.tensor([prompt, 9]),
                    "response_mask": torch.ones(2, dtype=torch.int64),
                    "rollout_log_probs": torch.tensor([-0.5, -0.25]),
                    "rm_scores": torch.tensor([0.0, 1.0]),
                }
                self.recorded.append(call(f"{key}", [1, prompt], [prompt, 9]))

    def compute_log_prob(self, meta: Any) -> None:
        assert self.asleep
        self.meta = meta
        for key in meta.keys:
            # One number a token of prompt and response; verl shifts it by one.
            self.queue.rows[key]["log_probs"] = torch.tensor([-9.0, -0.5, -0.25, -9.0])


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    queue, recorded = Queue(), []  # type: ignore[var-annotated]
    for name in ("kv_list", "kv_batch_get", "kv_clear"):
        monkeypatch.setattr(tq, name, getattr(queue, name))
    monkeypatch.setattr(ray, "get", lambda value: value)
    return Trainer(queue, recorded)


def manager_of(trainer: Trainer) -> Any:
    def remote(function: Any, *_: Any) -> Any:
        return trainer.recorded if function is gate_worker.stop_recording else None

    return SimpleNamespace(agent_loop_workers=[SimpleNamespace(__ray_call__=SimpleNamespace(remote=remote))])


def test_rollouts_go_through_verls_own_pieces_and_come_back_whole(trainer: Trainer) -> None:
    def sleep() -> None:
        trainer.asleep = True

    found = gate_rollout.record(trainer, manager_of(trainer), sleep=sleep)
    assert len(found.samples) == gate_rollout.PROMPTS * gate_rollout.SAMPLES
    assert [chat[0]["content"] for chat in found.messages[:4]] == ["0", "1", "2", "0"]
    one = next(sample for sample in found.samples if sample.prompt == 1)
    assert one.prompt_ids == [1, 1]
    assert one.response_ids == [1, 9]
    assert one.mask == one.generated() == [1, 1]
    assert one.trainer == one.rollout == [-0.5, -0.25]
    assert found.padded_ones == 0
    assert set(found.scores) == {1.0}
    # Sixteen trajectories on two ranks: eight each, in one micro-batch.
    assert trainer.meta.extra_info["micro_batch_size_per_gpu"] == 8
    gate_rollout.clear()
    assert trainer.queue.tags == {}


def test_trajectories_that_do_not_divide_are_an_error(trainer: Trainer) -> None:
    trainer.queue.tags = {"gatea_0_0": {}}
    with pytest.raises(gate_rollout.RolloutError, match="1 trajectories"):
        gate_rollout.log_probs(trainer, ["gatea_0_0"])


def test_only_the_gates_own_keys_are_cleared(trainer: Trainer) -> None:
    trainer.queue.tags = {"gatea": {}, "gatea_0_0": {}, "b_0_0": {}}
    gate_rollout.clear()
    assert trainer.queue.tags == {"b_0_0": {}}
