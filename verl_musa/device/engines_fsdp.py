"""verl's FSDP engines, registered for device musa."""

from __future__ import annotations

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from verl_musa.device.engines import Proven
from verl_musa.device.platform import NAME

BACKENDS = ["fsdp", "fsdp2"]


class MusaFSDPEngineWithLMHead(Proven, FSDPEngineWithLMHead):
    """verl's FSDP language-model engine on musa."""

    proof_role = "fsdp-language_model"


class MusaFSDPEngineWithValueHead(Proven, FSDPEngineWithValueHead):
    """verl's FSDP value-model engine on musa."""

    proof_role = "fsdp-value_model"


def register() -> None:
    """Register both engines for device musa.

    Raises:
        AssertionError: verl already has an engine for that device (raised by verl's registry).
    """
    EngineRegistry.register("language_model", BACKENDS, device=NAME)(MusaFSDPEngineWithLMHead)
    EngineRegistry.register("value_model", BACKENDS, device=NAME)(MusaFSDPEngineWithValueHead)
