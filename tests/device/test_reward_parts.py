from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    # verl's and Ray's own imports warn; what they say is not ours to fix.
    warnings.simplefilter("ignore")
    from verl_musa.device import determinism, reward_parts


def row(**parts: Any) -> dict[str, Any]:
    return {"num_turns": 2, "reward_extra_info": parts}


def test_each_part_is_averaged_and_the_score_is_left_to_verl() -> None:
    rows = [row(score=0.3, rule_score=0.0, model_score=0.5), row(score=0.9, rule_score=1.0, model_score=0.75)]
    assert reward_parts.means(rows) == {"reward/model_score/mean": 0.625, "reward/rule_score/mean": 0.5}


def test_numbers_of_other_types_count_and_other_things_do_not() -> None:
    rows = [row(a=np.float32(1.5), b=True, text="x", many=[1.0]), row(a=2, b=False, text="y", many=[2.0])]
    assert reward_parts.means(rows) == {"reward/a/mean": 1.75, "reward/b/mean": 0.5}


def test_a_part_that_not_every_response_has_is_left_out() -> None:
    assert reward_parts.means([row(a=1.0, b=2.0), row(a=3.0)]) == {"reward/a/mean": 2.0}


@pytest.mark.parametrize("rows", [[], [{}, {}], [None], [row(a=1.0), {}]])
def test_without_parts_there_are_no_metrics(rows: list[Any]) -> None:
    assert reward_parts.means(rows) == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_part_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"reward part 'a'.*expected finite numbers"):
        reward_parts.means([row(a=1.0), row(a=bad)])


@pytest.mark.parametrize(("partition", "added"), [("train", {"reward/a/mean": 2.0}), ("val", {})])
def test_training_samples_bring_their_parts_and_validation_does_not(
    partition: str, added: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = SimpleNamespace(keys=["u_0_0", "u_1_0"])
    asked: list[Any] = []

    def fetch(**call: Any) -> dict[str, Any]:
        asked.append(call)
        return {"extra_fields": np.array([row(a=1.0), row(a=3.0)], dtype=object)}

    def sample(
        _self: Any, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[Any, dict[str, Any]]:
        assert (global_steps, partition_id, batch_size) == (4, partition, 2)
        return batch, {"other": 1}

    monkeypatch.setattr(determinism.OrderedReplayBuffer, "sample", sample)
    monkeypatch.setattr("transfer_queue.kv_batch_get", fetch)
    buffer = object.__new__(reward_parts.RewardPartsReplayBuffer)
    assert buffer.sample(4, partition, 2) == (batch, {"other": 1, **added})
    fields = {"keys": batch.keys, "partition_id": "train", "select_fields": ["extra_fields"]}
    assert asked == ([fields] if added else [])
