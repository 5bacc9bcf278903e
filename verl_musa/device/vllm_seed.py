"""Sampling seeds under the name that vLLM gives them."""

from __future__ import annotations

from typing import Any


def vllm_sampling(sampling_params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with a seed under vLLM's name: SeededAgentLoopWorker gives it under SGLang's.

    vLLM draws a seeded request's tokens from a generator of its own, whatever else is in the batch.
    """
    named = dict(sampling_params)
    seed = named.pop("sampling_seed", None)
    if seed is not None:
        named["seed"] = int(seed)
    return named
