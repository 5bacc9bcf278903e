"""verl's FSDP engines, registered for device musa, each proving where it runs before it builds a model."""

from __future__ import annotations

from typing import Any

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from verl_musa.device import proof
from verl_musa.device.platform import NAME

BACKENDS = ["fsdp", "fsdp2"]


class _Proven:
    """Mixin: writes the proof before the model is built, and the collective counters after each batch."""

    proof_role = ""

    def initialize(self) -> None:
        """Prove, then build model, optimizer and checkpoint manager.

        Raises:
            ExpectationError: this worker is not on the device or backend that the run expects.
        """
        proof.prove(self.proof_role)
        super().initialize()  # type: ignore[misc]

    def train_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch as verl does, then write the counters."""
        result = super().train_batch(*args, **kwargs)  # type: ignore[misc]
        proof.write_counters()
        return result

    def infer_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Infer one batch as verl does, then write the counters."""
        result = super().infer_batch(*args, **kwargs)  # type: ignore[misc]
        proof.write_counters()
        return result


class MusaFSDPEngineWithLMHead(_Proven, FSDPEngineWithLMHead):
    """verl's FSDP language-model engine on musa."""

    proof_role = "fsdp-language_model"


class MusaFSDPEngineWithValueHead(_Proven, FSDPEngineWithValueHead):
    """verl's FSDP value-model engine on musa."""

    proof_role = "fsdp-value_model"


def register() -> None:
    """Register both engines for device musa.

    Raises:
        AssertionError: verl already has an engine for that device (raised by verl's registry).
    """
    EngineRegistry.register("language_model", BACKENDS, device=NAME)(MusaFSDPEngineWithLMHead)
    EngineRegistry.register("value_model", BACKENDS, device=NAME)(MusaFSDPEngineWithValueHead)
