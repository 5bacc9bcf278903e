from __future__ import annotations

import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    # verl's and Ray's own imports warn; what they say is not ours to fix.
    warnings.simplefilter("ignore")
    from verl.checkpoint_engine.base import CheckpointEngineWorker

    from verl_musa.device import proof, reward_worker
    from verl_musa.device.expect import ExpectationError
    from verl_musa.device.replica import ProvenReward


def test_the_worker_proves_itself_when_verl_has_set_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def set_up(_self: Any, *args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    def prove(role: str, **options: Any) -> None:
        seen.append((role, options))

    monkeypatch.setattr(CheckpointEngineWorker, "__init__", set_up)
    monkeypatch.setattr(proof, "prove", prove)
    reward_worker.RewardWorker(rollout_config="rollout", model_config="model", replica_rank=0)
    call = {"rollout_config": "rollout", "model_config": "model", "replica_rank": 0}
    assert seen == [((), call), ("reward-worker", {"grouped": False})]


def test_a_worker_on_another_device_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(role: str, **_: Any) -> None:
        raise ExpectationError(f"{role} is elsewhere")

    monkeypatch.setattr(CheckpointEngineWorker, "__init__", lambda self: None)  # noqa: ARG005
    monkeypatch.setattr(proof, "prove", refuse)
    with pytest.raises(ExpectationError, match="reward-worker is elsewhere"):
        reward_worker.RewardWorker()


class Upstream:
    """What the mixin needs of verl's replica."""

    def __init__(self, *, is_reward_model: bool) -> None:
        self.is_reward_model = is_reward_model
        self.config, self.model_config, self.replica_rank = "rollout", "model", 3

    def get_ray_class_with_init_args(self) -> str:
        return "verl's"


class Replica(ProvenReward, Upstream):
    """A replica of either engine."""


def test_a_rollouts_workers_stay_verls() -> None:
    assert Replica(is_reward_model=False).get_ray_class_with_init_args() == "verl's"


def test_a_reward_models_workers_prove_themselves() -> None:
    made = Replica(is_reward_model=True).get_ray_class_with_init_args()
    assert made.cls.__ray_metadata__.modified_class.__mro__[1] is reward_worker.RewardWorker
    assert made.kwargs == {"rollout_config": "rollout", "model_config": "model", "replica_rank": 3}
