"""verl hands Megatron's local attention a mask of another shape than it can use."""

import functools
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

TARGET = "megatron.core.transformer.dot_product_attention:DotProductAttention.forward"
CAUSAL_BY_ITSELF = "megatron.core.fusions.fused_softmax:FusedScaleMaskSoftmax.forward_torch_softmax"

PATCH = Patch(
    id="megatron-local-attention-mask",
    summary="a right-padded [batch, sequence] mask becomes the causal mask that local attention makes itself",
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
    "token looks at padding, so the causal mask alone is exact there. Anything else is refused.",
    source="verl 0.9.1, models/mcore/model_forward.py (bshd path); Megatron-Core 0.16.1",
    remove_when=RemoveWhen(text="verl builds the 4-dimensional mask, or Transformer Engine is used on MUSA"),
    without="must match the size of tensor",
)


@PATCH.wrap(TARGET)
def _causal_for_right_padding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(
        self: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if attention_mask is not None and attention_mask.dim() == 2:  # noqa: PLR2004  (batch, sequence)
            _require_right_padding(self, attention_mask)
            attention_mask = None
        return original(self, query, key, value, attention_mask, *args, **kwargs)

    return forward


def _require_right_padding(attention: Any, mask: Any) -> None:
    """Check, once per mask because it costs a device synchronisation, that dropping it changes nothing.

    Args:
        attention: the attention module.
        mask: (batch, sequence), true or 1 at valid tokens.

    Raises:
        ValueError: the attention is not causal, or padding stands before a valid token.
    """
    from megatron.core.transformer.enums import AttnMaskType

    if attention.attn_mask_type != AttnMaskType.causal:
        raise ValueError(
            f"a [batch, sequence] mask with {attention.attn_mask_type}: only causal attention can drop it"
        )
    if getattr(mask, "verl_musa_right_padded", False):
        return
    valid = mask.bool()
    if bool((valid[:, 1:] & ~valid[:, :-1]).any()):
        raise ValueError(
            "a [batch, sequence] mask with padding before a valid token: the causal mask is not enough"
        )
    mask.verl_musa_right_padded = True
