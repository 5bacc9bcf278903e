from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    # verl's and Ray's own imports warn; what they say is not ours to fix.
    warnings.simplefilter("ignore")
    from verl_musa.device.determinism import OrderedReplayBuffer, request_seed, trajectory_order

TRAJECTORY = {"step": 3, "sample_index": np.int64(5), "rollout_n": 0, "validate": False}
PROMPT = [{"role": "user", "content": "1+2="}]


def test_a_seed_depends_on_every_part_of_its_place() -> None:
    base = request_seed(17, TRAJECTORY, 0, PROMPT)
    others = [
        request_seed(18, TRAJECTORY, 0, PROMPT),
        request_seed(17, {**TRAJECTORY, "step": 4}, 0, PROMPT),
        request_seed(17, {**TRAJECTORY, "sample_index": 6}, 0, PROMPT),
        request_seed(17, {**TRAJECTORY, "validate": True}, 0, PROMPT),
        request_seed(17, TRAJECTORY, 1, PROMPT),
        request_seed(17, TRAJECTORY, 0, [{"role": "user", "content": "2+1="}]),
    ]
    assert len({base, *others}) == 7
    assert request_seed(17, dict(TRAJECTORY), 0, list(PROMPT)) == base


def test_seeds_fit_what_sglang_stores() -> None:
    seeds = [request_seed(17, TRAJECTORY, session, PROMPT) for session in range(100)]
    assert all(0 <= seed < 2**62 for seed in seeds)
    # Known value: a change of the derivation would silently break the resume of older runs.
    assert seeds[0] == 793604311243066282


def test_trajectories_sort_by_prompt_session_and_output() -> None:
    place = {"b": 0, "a": 1}
    keys = ["a_10_0", "a_2_0", "b_1_0", "b_0_1", "b_0_0"]
    assert sorted(keys, key=lambda key: trajectory_order(key, place)) == [
        "b_0_0",
        "b_0_1",
        "b_1_0",
        "a_2_0",
        "a_10_0",
    ]


def test_another_key_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \{uid\}_\{session\}_\{output\}"):
        trajectory_order("uid", {})


class _Queue:
    """The part of TransferQueue that the replay buffer uses."""

    def __init__(self, partitions: dict[str, dict[str, dict[str, Any]]]) -> None:
        self.partitions = partitions
        self.cleared: list[str] = []

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        return self.partitions

    def kv_clear(self, *, partition_id: str, keys: list[str]) -> None:
        del partition_id
        self.cleared.extend(keys)


def _finished(order_of_completion: list[str]) -> dict[str, dict[str, Any]]:
    items: dict[str, dict[str, Any]] = {
        uid: {"is_prompt": True, "status": "finished", "global_steps": 1} for uid in ("q", "c", "x")
    }
    items.update({key: {"status": "success", "seq_len": 1} for key in order_of_completion})
    return items


def test_samples_come_in_dispatch_order_whatever_finished_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{uid}_{session}_0" for uid in ("q", "c", "x") for session in range(3)]
    for seed in range(5):
        finished = keys.copy()
        random.Random(seed).shuffle(finished)  # noqa: S311 - an order, not a secret
        queue = _Queue({"train": _finished(finished)})
        monkeypatch.setattr("verl.trainer.ppo.v1.replay_buffer.tq", queue)
        buffer = OrderedReplayBuffer(
            trainer_mode="sync",
            trainer_config={},
            max_off_policy_threshold=8,
            max_off_policy_strategy="drop",
            sampler_kwargs={"poll_interval": 0.01},
            refill_fn=None,
        )
        assert buffer.poll_interval == 0.01
        batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
        assert list(batch.keys) == keys[:6]
        assert queue.cleared == ["q", "c"]
