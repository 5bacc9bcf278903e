"""verl hands Megatron's local attention a mask of another shape than it can use, or packed sequences."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

TARGET = "megatron.core.transformer.dot_product_attention:DotProductAttention.forward"
CAUSAL_BY_ITSELF = "megatron.core.fusions.fused_softmax:FusedScaleMaskSoftmax.forward_torch_softmax"

PATCH = Patch(
    id="megatron-local-attention-mask",
    summary="local attention takes verl's right-padded [batch, sequence] mask, and packed sequences one by one",
    distribution="megatron-core",
    versions=">=0.16,<0.19",
    fingerprints={
        TARGET: {
            "0.16.1": "12d4618c5b7f14e2e4d74c0d31dbab82bace6cbcbff05b22411624692e4afdf9",
            "0.18.0": "12d4618c5b7f14e2e4d74c0d31dbab82bace6cbcbff05b22411624692e4afdf9",
        },
        CAUSAL_BY_ITSELF: {
            "0.16.1": "f0dbf2e514d199b4ca57c5d47c951d339cca37f6b4d468b88f80a26bdf1aa6c1",
            "0.18.0": "f0dbf2e514d199b4ca57c5d47c951d339cca37f6b4d468b88f80a26bdf1aa6c1",
        },
    },
    reason="verl passes the mask of valid tokens, [batch, sequence]; local attention wants the masked-out pairs, [batch, "
    "1, sequence, sequence], and fails on the sizes. With causal attention and padding on the right, no valid "
    "token looks at padding, so the causal mask alone is exact there. Packed sequences, which it asserts not to get, are "
    "attended to one by one with the same mask. Anything else is refused.",
    source="verl 0.9.1, models/mcore/model_forward.py (bshd path); Megatron-Core 0.16.1",
    remove_when=RemoveWhen(text="verl builds the 4-dimensional mask, or Transformer Engine is used on MUSA"),
    without="must match the size of tensor",
)


@PATCH.wrap(TARGET)
def _causal_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(  # noqa: PLR0917  (Megatron's signature)
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
    ) -> Any:
        def attend(*states: Any, mask: Any) -> Any:
            return original(self, *states, mask, attn_mask_type, attention_bias)

        if packed_seq_params is not None:
            return _one_by_one(self, attend, (query, key, value), packed_seq_params)
        if attention_mask is not None and attention_mask.dim() == 2:  # noqa: PLR2004  (batch, sequence)
            _require_right_padding(self, attention_mask)
            attention_mask = None
        return attend(query, key, value, mask=attention_mask)

    return forward


def _one_by_one(attention: Any, attend: Callable[..., Any], states: tuple[Any, Any, Any], packed: Any) -> Any:
    """Attend within each of the packed sequences. Padding may stand at their ends only, as verl packs them.

    Args:
        attention: the attention module.
        attend: attention over states of (sequence, 1, heads, head size).
        states: query, key and value, (tokens, heads, head size).
        packed: PackedSeqParams of the same lengths for queries and keys.

    Returns:
        (tokens, heads * head size).

    Raises:
        ValueError: not causal, another layout than thd, or lengths that do not make up all tokens.
    """
    import torch

    _require_causal(attention, "packed sequences")
    bounds = getattr(packed, "verl_musa_bounds", None)
    if bounds is None:
        # Once per batch and not per layer: it waits for the device.
        padded = packed.cu_seqlens_q_padded
        bounds = (packed.cu_seqlens_q if padded is None else padded).tolist()
        packed.verl_musa_bounds = bounds
    tokens = states[0].shape[0]
    if packed.qkv_format != "thd" or bounds[0] != 0 or bounds[-1] != tokens or states[1].shape[0] != tokens:
        raise ValueError(
            f"packed sequences: found layout {packed.qkv_format}, {tokens} queries, {states[1].shape[0]} keys and "
            f"bounds {bounds}; expected thd and bounds from 0 to the number of both"
        )
    parts = [
        attend(*(state[start:end].unsqueeze(1) for state in states), mask=None)
        for start, end in itertools.pairwise(bounds)
        if end > start
    ]
    return torch.cat(parts).squeeze(1)


def _require_causal(attention: Any, what: str) -> None:
    from megatron.core.transformer.enums import AttnMaskType

    if attention.attn_mask_type != AttnMaskType.causal:
        raise ValueError(f"{what} with {attention.attn_mask_type}: only causal attention masks by itself")


def _require_right_padding(attention: Any, mask: Any) -> None:
    """Check, once per mask because it costs a device synchronisation, that dropping it changes nothing.

    Args:
        attention: the attention module.
        mask: (batch, sequence), true or 1 at valid tokens.

    Raises:
        ValueError: the attention is not causal, or padding stands before a valid token.
    """
    _require_causal(attention, "a [batch, sequence] mask")
    if getattr(mask, "verl_musa_right_padded", False):
        return
    valid = mask.bool()
    if bool((valid[:, 1:] & ~valid[:, :-1]).any()):
        raise ValueError(
            "a [batch, sequence] mask with padding before a valid token: the causal mask is not enough"
        )
    mask.verl_musa_right_padded = True
