"""verl's Megatron engines, registered for device musa."""

from __future__ import annotations

from typing import Any

from megatron.core import parallel_state
from verl.models.mcore.patch import apply_patch_megatron_recomputation_backward
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.megatron.transformer_impl import (
    MegatronEngineWithLMHead,
    MegatronEngineWithValueHead,
)

from verl_musa.device.engines import Proven
from verl_musa.device.platform import NAME

BACKEND = "megatron"


class _ProvenMegatron(Proven):
    """Mixin: what verl does on CUDA only; and the proof names Megatron's groups as they are, not as they were asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make verl's engine, then let recomputation free each layer's inputs once its backward is through."""
        super().__init__(*args, **kwargs)
        apply_patch_megatron_recomputation_backward()

    def parallel_sizes(self) -> dict[str, int]:
        """Ranks in this rank's tensor, pipeline, context, expert, expert-tensor and data-parallel groups."""
        return {
            "tensor": parallel_state.get_tensor_model_parallel_world_size(),
            "pipeline": parallel_state.get_pipeline_model_parallel_world_size(),
            "context": parallel_state.get_context_parallel_world_size(),
            "expert": parallel_state.get_expert_model_parallel_world_size(),
            "expert_tensor": parallel_state.get_expert_tensor_parallel_world_size(),
            "data": parallel_state.get_data_parallel_world_size(),
        }


class MusaMegatronEngineWithLMHead(_ProvenMegatron, MegatronEngineWithLMHead):
    """verl's Megatron language-model engine on musa."""

    proof_role = "megatron-language_model"


class MusaMegatronEngineWithValueHead(_ProvenMegatron, MegatronEngineWithValueHead):
    """verl's Megatron value-model engine on musa."""

    proof_role = "megatron-value_model"


def register() -> None:
    """Register both engines for device musa.

    Raises:
        AssertionError: verl already has an engine for that device (raised by verl's registry).
    """
    EngineRegistry.register("language_model", BACKEND, device=NAME)(MusaMegatronEngineWithLMHead)
    EngineRegistry.register("value_model", BACKEND, device=NAME)(MusaMegatronEngineWithValueHead)
