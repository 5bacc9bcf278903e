"""Loading verl's rollout replicas for musa."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

CPU_ENGINE_ENV = "SGLANG_USE_CPU_ENGINE"


def load_sglang_replica(original: Callable[[], type]) -> type:
    """Run verl's own loader, then return this project's subclass of its replica.

    verl's loader sets SGLANG_USE_CPU_ENGINE and deletes it afterwards. Where the run set it, the SGLang server that this
    process starts still needs it, so it is put back.

    Args:
        original: verl's ``_load_sglang``.
    """
    asked = os.environ.get(CPU_ENGINE_ENV)
    original()
    if asked is not None:
        os.environ[CPU_ENGINE_ENV] = asked
    from verl_musa.device.sglang_server import MusaSGLangReplica

    return MusaSGLangReplica


def load_vllm_replica() -> type:
    """Return this project's subclass of verl's vLLM replica."""
    from verl_musa.device.vllm_server import MusaVLLMReplica

    return MusaVLLMReplica


class ProvenReward:
    """Mixin of a replica of verl's: the workers that hold a reward model's devices prove themselves."""

    is_reward_model: bool
    config: Any
    model_config: Any
    replica_rank: int

    def get_ray_class_with_init_args(self) -> Any:
        """Return verl's class of the workers that hold the devices, for a reward model one that proves itself."""
        if not self.is_reward_model:
            return super().get_ray_class_with_init_args()  # type: ignore[misc]
        import ray
        from verl.single_controller.ray import RayClassWithInitArgs

        from verl_musa.device.reward_worker import RewardWorker

        return RayClassWithInitArgs(
            cls=ray.remote(RewardWorker),
            rollout_config=self.config,
            model_config=self.model_config,
            replica_rank=self.replica_rank,
        )
