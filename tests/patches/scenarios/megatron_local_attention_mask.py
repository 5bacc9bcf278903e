"""Attention with a right-padded mask must equal, at the valid tokens, attention over those tokens alone."""

import torch
from megatron.core import parallel_state
from megatron.core.fusions import fused_softmax
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

# What torchada redirects on MUSA.
torch.cuda.current_device = lambda: torch.device("cpu")
fused_softmax.get_default_causal_mask = lambda size: torch.triu(torch.ones(size, size), diagonal=1).bool()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=2, attention_dropout=0.0, masked_softmax_fusion=False
)
config.sequence_parallel = True  # skips the random-state tracker, which wants a device


def attention(kind: AttnMaskType) -> DotProductAttention:
    return DotProductAttention(config, layer_number=1, attn_mask_type=kind, attention_type="self")


def run(length: int, mask: torch.Tensor | None, kind: AttnMaskType = AttnMaskType.causal) -> torch.Tensor:
    torch.manual_seed(0)
    query, key, value = (torch.randn(4, 2, 2, 4)[:length] for _ in range(3))
    return attention(kind)(query, key, value, mask)


mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
torch.testing.assert_close(run(4, mask)[:2], run(2, None))
left_padded = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
for bad, kind in ((left_padded, AttnMaskType.causal), (mask, AttnMaskType.padding)):
    try:
        run(4, bad, kind)
    except ValueError:
        continue
    raise SystemExit("a mask that cannot be dropped was dropped")
