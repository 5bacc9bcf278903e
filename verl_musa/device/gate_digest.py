"""Digests of weights, equal on any device and for any order of summing, and the rollout's tensors by their HF names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

CHUNK = 1 << 22
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MASK = (1 << 64) - 1
VLLM_EXPERTS = ".routed_experts"
"""vLLM holds the experts' weights one module deeper than Hugging Face names them."""


def digest(tensor: torch.Tensor) -> str:
    """32 hexadecimal digits made from the bits of ``tensor``: their sum, and their sum weighted by place, modulo 2**64.

    Integer sums do not depend on the order, so a device and the CPU agree; the second one sees permutations.
    """
    bits = tensor.detach().contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    plain = weighted = 0
    for start in range(0, bits.numel(), CHUNK):
        numbers = bits[start : start + CHUNK].to(torch.int64)
        places = torch.arange(start, start + numbers.numel(), dtype=torch.int64, device=numbers.device)
        # An odd multiplier spreads the places over 31 bits; overflow wraps, on every device alike.
        weights = (places * 0x9E3779B1 + 1) & 0x7FFFFFFF
        plain += int(numbers.sum())
        weighted += int((numbers * weights).sum())
    return f"{plain & _MASK:016x}{weighted & _MASK:016x}"


def describe(tensor: torch.Tensor) -> str:
    """``dtype|shape|digest``."""
    shape = "x".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}|{shape}|{digest(tensor)}"


def cuts(tensor: torch.Tensor, ranks: int) -> list[list[torch.Tensor]]:
    """What each of ``ranks`` tensor-parallel ranks may hold of ``tensor``: all of it, or a part along dimension 0 or 1.

    With fewer key/value heads than ranks a part is held by several ranks, so every divisor of ``ranks`` counts.
    """
    found: list[list[torch.Tensor]] = [[tensor] for _ in range(ranks)]
    for parts in (parts for parts in range(2, ranks + 1) if ranks % parts == 0):
        for dim in range(min(2, tensor.dim())):
            size, rest = divmod(tensor.shape[dim], parts)
            if rest or not size:
                continue
            for rank in range(ranks):
                found[rank].append(tensor.narrow(dim, (rank * parts // ranks) * size, size))
    return found


def expected(tensor: torch.Tensor, dtypes: list[str], ranks: int) -> list[list[str]]:
    """By rank: the texts of all that it may hold, in each of ``dtypes`` and the tensor's own."""
    wanted = (
        {tensor.dtype, *(getattr(torch, name) for name in dtypes)}
        if tensor.is_floating_point()
        else {tensor.dtype}
    )
    versions = [tensor if dtype == tensor.dtype else tensor.to(dtype) for dtype in sorted(wanted, key=str)]
    by_rank: list[list[str]] = [[] for _ in range(ranks)]
    for version in versions:
        for rank, parts in enumerate(cuts(version, ranks)):
            by_rank[rank] += [describe(part) for part in parts]
    return by_rank


def pieces(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters of an SGLang or vLLM model by Hugging Face's names, with fused ones taken apart.

    Fused and known: ``qkv_proj``, ``gate_up_proj`` and the experts' ``w13_weight`` and ``w2_weight``. Others keep their name.
    """
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        module: Any = modules.get(owner)
        data = parameter.data
        if owner.endswith(".qkv_proj") and hasattr(module, "num_kv_heads"):
            sizes = [module.num_heads * module.head_size, module.num_kv_heads * module.head_size]
            parts = data.split([*sizes, data.shape[0] - sum(sizes)])
            yield from zip((f"{owner[:-8]}{one}_proj.{kind}" for one in "qkv"), parts, strict=True)
        elif owner.endswith(".gate_up_proj") and data.shape[0] % 2 == 0:
            gate, up = data.chunk(2)
            yield f"{owner[:-12]}gate_proj.{kind}", gate
            yield f"{owner[:-12]}up_proj.{kind}", up
        elif kind in {"w13_weight", "w2_weight"}:
            yield from _experts(owner.removesuffix(VLLM_EXPERTS), kind, data, _expert_rank(module))
        else:
            yield name, data


def _expert_rank(module: Any) -> int:
    """The expert-parallel rank of a layer of experts, SGLang's or vLLM's."""
    holder = module if hasattr(module, "moe_ep_rank") else getattr(module, "moe_config", None)
    return int(getattr(holder, "moe_ep_rank", None) or getattr(holder, "ep_rank", None) or 0)


def _experts(owner: str, kind: str, data: torch.Tensor, ep_rank: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The experts of a rank, (experts, out, in); w13 holds gate above up."""
    for local, weight in enumerate(data):
        expert = f"{owner}.{ep_rank * data.shape[0] + local}"
        if kind == "w2_weight":
            yield f"{expert}.down_proj.weight", weight
        else:
            gate, up = weight.chunk(2)
            yield f"{expert}.gate_proj.weight", gate
            yield f"{expert}.up_proj.weight", up


def digests(model: Any) -> dict[str, str]:
    """Texts of all parameters of a rollout's model."""
    return {name: describe(tensor) for name, tensor in pieces(model)}
