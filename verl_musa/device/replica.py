"""Loading verl's rollout replicas for musa."""

from __future__ import annotations

import os
from collections.abc import Callable

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
