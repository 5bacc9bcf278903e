"""What the gate does inside trainer and agent-loop workers; the driver sends these functions through ``__ray_call__``.

Only verl's own engine interface is used (``get_per_tensor_param``, ``to``), so FSDP and Megatron are alike here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from verl.utils.device import get_device_name, get_torch_device

from verl_musa.device import gate_digest

# x * SCALE + SHIFT changes every number but -1, in any dtype: both are exact in bfloat16.
SCALE, SHIFT = 1.0625, 0.0625


def actor_of(holder: Any) -> Any:
    """The worker with the actor's engine: ``holder`` itself, or one of the workers that verl fused in it.

    Raises:
        LookupError: there is none.
    """
    for worker in (holder, *getattr(holder, "worker_dict", {}).values()):
        if getattr(worker, "actor", None) is not None:
            return worker
    raise LookupError(f"no worker with an actor in {type(holder).__name__}")


def _locals(engine: Any) -> Iterator[torch.Tensor]:
    """This rank's part of every floating-point parameter, as tensors that share its memory."""
    modules = engine.module if isinstance(engine.module, list | tuple) else [engine.module]
    seen: set[int] = set()
    for module in modules:
        for parameter in module.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter.data
            if id(parameter) not in seen and local.is_floating_point():
                seen.add(id(parameter))
                yield local.detach()


def _load(engine: Any) -> None:
    """Bring offloaded parameters back; verl's weight sync offloads them again."""
    if engine.is_param_offload_enabled:
        engine.to(device=get_device_name(), model=True, optimizer=False, grad=False)


def perturb(holder: Any) -> int:
    """Change every parameter of the trainer and keep the true ones; return how many tensors that were."""
    engine = actor_of(holder).actor.engine
    _load(engine)
    with torch.no_grad():
        parts = list(_locals(engine))
        engine.verl_musa_saved = [part.to("cpu", copy=True) for part in parts]
        for part in parts:
            part.mul_(SCALE).add_(SHIFT)
    return len(parts)


def restore(holder: Any) -> int:
    """Put back what :func:`perturb` kept, bit for bit.

    Raises:
        AttributeError: nothing was kept.
    """
    engine = actor_of(holder).actor.engine
    saved = engine.verl_musa_saved
    _load(engine)
    with torch.no_grad():
        for part, kept in zip(_locals(engine), saved, strict=True):
            part.copy_(kept)
    del engine.verl_musa_saved
    return len(saved)


def export_digests(holder: Any, dtypes: list[str], ranks: int) -> dict[str, list[list[str]]]:
    """Digests of the trainer's weights as it exports them for the rollout; empty on all ranks but the first.

    Exporting gathers shards: every rank has to walk through it.
    """
    engine = actor_of(holder).actor.engine
    weights, _ = engine.get_per_tensor_param()
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    found: dict[str, list[list[str]]] = {}
    for name, tensor in weights:
        if first:
            found[name] = gate_digest.expected(tensor, dtypes, ranks)
    if engine.is_param_offload_enabled:
        engine.to(device="cpu", model=True, optimizer=False, grad=False)
    return found


def random_state(holder: Any = None) -> dict[str, Any]:
    """The states of every generator of this process, the current device's included."""
    del holder
    device = get_torch_device()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the global generator is what others use
        "torch": torch.get_rng_state(),
        "device": device.get_rng_state() if get_device_name() != "cpu" and device.is_available() else None,
    }


def keep_random_state(holder: Any) -> None:
    """Remember :func:`random_state` in this process."""
    holder.verl_musa_random = random_state()


def restore_random_state(holder: Any) -> None:
    """Go back to what :func:`keep_random_state` remembered."""
    set_random_state(holder.verl_musa_random)
    del holder.verl_musa_random


def set_random_state(state: dict[str, Any]) -> None:
    """Set every generator to ``state``."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["device"] is not None:
        get_torch_device().set_rng_state(state["device"])


def start_recording(holder: Any, max_tokens: int | None) -> None:
    """In an agent-loop worker: note every request to the rollout server, and cap its length.

    Args:
        holder: the worker.
        max_tokens: longest response of one request; None for the recipe's own.
    """
    client = holder.llm_client
    calls: list[dict[str, Any]] = []
    original = client.generate

    async def generate(request_id: Any, *, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        sent = list(kwargs["prompt_ids"])
        capped = {**sampling_params, "max_tokens": max_tokens} if max_tokens else sampling_params
        output = await original(request_id, sampling_params=capped, **kwargs)
        calls.append({"request": str(request_id), "prompt_ids": sent, "token_ids": list(output.token_ids)})
        return output

    client.generate = generate
    holder.verl_musa_calls = calls


def stop_recording(holder: Any) -> list[dict[str, Any]]:
    """Return the noted requests (``request``, ``prompt_ids``, ``token_ids``) in the order in which they ended."""
    calls: list[dict[str, Any]] = holder.verl_musa_calls
    del holder.llm_client.generate, holder.verl_musa_calls
    return calls
