"""Bugs that tests plant into a running job, to show that the gate finds each. For the simulator only.

VERL_MUSA_TEST_PLANT names them, joined by commas; the gate then runs once as it is and once with each bug, and the job ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
import torch
from verl.plugin.platform import get_platform

from verl_musa.device.gate_worker import actor_of

PLANT_ENV = "VERL_MUSA_TEST_PLANT"
STALE = "model.layers.1.mlp.down_proj.weight"
TEMPLATE = "{%- for message in messages -%}Q: {{ message['content'] }}\n{%- endfor -%}A:"


def asked() -> list[str]:
    """The bugs to plant; none outside tests.

    Raises:
        RuntimeError: asked for on a real device, or an unknown name.
    """
    names = [name for name in os.environ.get(PLANT_ENV, "").split(",") if name]
    if names and not getattr(get_platform(), "simulated", False):
        raise RuntimeError(f"{PLANT_ENV} is a test switch of the simulator: unset it on a real device")
    if unknown := sorted(set(names) - set(PLANTS)):
        raise RuntimeError(f"{PLANT_ENV}: found {', '.join(unknown)}; expected some of {', '.join(PLANTS)}")
    return names


@contextmanager
def planted(name: str, trainers: list[Any], agents: list[Any]) -> Iterator[None]:
    """While entered, the bug is in place.

    Args:
        name: which one.
        trainers: handles of the trainer workers.
        agents: handles of the agent-loop workers.
    """
    plant, remove, in_trainer = PLANTS[name]
    workers = trainers if in_trainer else agents
    ray.get([worker.__ray_call__.remote(plant) for worker in workers])
    try:
        yield
    finally:
        ray.get([worker.__ray_call__.remote(remove) for worker in workers])


def drop_tensor(holder: Any) -> None:
    """Leave one tensor out of every weight sync."""
    rollout = actor_of(holder).rollout
    original = rollout.update_weights

    async def update_weights(weights: Any, *args: Any, **kwargs: Any) -> None:
        await original(((name, tensor) for name, tensor in weights if name != STALE), *args, **kwargs)

    rollout.update_weights = update_weights


def drop_nothing(holder: Any) -> None:
    """Undo :func:`drop_tensor`."""
    del actor_of(holder).rollout.update_weights


def shift_mask(holder: Any) -> None:
    """Shift each response mask by one token."""
    original = holder._agent_loop_postprocess

    async def postprocess(output: Any, validate: Any, **kwargs: Any) -> Any:
        for one in output if isinstance(output, list) else [output]:
            one.response_mask = [0, *one.response_mask[:-1]]
        return await original(output, validate, **kwargs)

    holder._agent_loop_postprocess = postprocess


def shift_nothing(holder: Any) -> None:
    """Undo :func:`shift_mask`."""
    del holder._agent_loop_postprocess


def swap_template(holder: Any) -> None:
    """Give the agent loop another chat template than the model's."""
    holder.verl_musa_template = holder.tokenizer.chat_template
    holder.tokenizer.chat_template = TEMPLATE


def swap_back(holder: Any) -> None:
    """Undo :func:`swap_template`."""
    holder.tokenizer.chat_template = holder.verl_musa_template


def _parameters(holder: Any) -> dict[str, torch.Tensor]:
    module = actor_of(holder).actor.engine.module
    return {name: parameter.to_local() for name, parameter in module.named_parameters()}


def _change(holder: Any, changes: dict[str, torch.Tensor]) -> None:
    """Set the local parts of parameters of an FSDP2 module, and keep the old ones."""
    parameters = _parameters(holder)
    actor_of(holder).verl_musa_planted = {name: parameters[name].detach().clone() for name in changes}
    with torch.no_grad():
        for name, value in changes.items():
            parameters[name].copy_(value)


def put_back(holder: Any) -> None:
    """Undo :func:`transpose_qkv` and :func:`lose_head`."""
    saved = actor_of(holder).verl_musa_planted
    parameters = _parameters(holder)
    with torch.no_grad():
        for name, value in saved.items():
            parameters[name].copy_(value)


def transpose_qkv(holder: Any) -> None:
    """Read the rows of Q, K and V in the wrong order, (rows / 2, 2) for (2, rows / 2), as a converter may."""
    wrong = {}
    for name, value in _parameters(holder).items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            wrong[name] = value.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1).contiguous()
    _change(holder, wrong)


def lose_head(holder: Any) -> None:
    """Overwrite the output projection by the embedding, as a load into a tied model does."""
    _change(holder, {"lm_head.weight": _parameters(holder)["model.embed_tokens.weight"].clone()})


_Plant = tuple[Callable[[Any], None], Callable[[Any], None], bool]
PLANTS: dict[str, _Plant] = {
    "stale-tensor": (drop_tensor, drop_nothing, True),
    "response-mask": (shift_mask, shift_nothing, False),
    "chat-template": (swap_template, swap_back, False),
    "transposed-qkv": (transpose_qkv, put_back, True),
    "lost-lm-head": (lose_head, put_back, True),
}
