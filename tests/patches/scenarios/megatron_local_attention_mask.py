"""Attention with a right-padded mask, or packed, must equal attention over each sequence's own tokens alone."""

import torch
from support import start_megatron

start_megatron()

from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

CONFIG = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=2, attention_dropout=0.0, masked_softmax_fusion=False
)
LENGTHS = (3, 2)


def attention(kind: AttnMaskType = AttnMaskType.causal) -> DotProductAttention:
    return DotProductAttention(CONFIG, layer_number=1, attn_mask_type=kind, attention_type="self")


def states() -> list[torch.Tensor]:
    """Return query, key and value of two sequences: (4, 2, heads 2, head size 4)."""
    torch.manual_seed(0)
    return [torch.randn(4, 2, 2, 4).to("musa") for _ in range(3)]


def refused(call: object, *args: object, **options: object) -> None:
    try:
        call(*args, **options)  # type: ignore[operator]
    except ValueError:
        return
    raise SystemExit("what cannot be computed without a mask was computed")


alone = [
    attention()(*(state[:length, row : row + 1] for state in states()), None)
    for row, length in enumerate(LENGTHS)
]

mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool, device="musa")
together = attention()(*states(), mask)
for row, length in enumerate(LENGTHS):
    torch.testing.assert_close(together[:length, row : row + 1], alone[row])
left_padded = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.bool, device="musa")
refused(attention(), *states(), left_padded)
refused(attention(AttnMaskType.padding), *states(), mask)

# Each packed sequence is followed by one token of padding, up to a multiple of the tensor-parallel size.
packed = [torch.cat([state[: length + 1, row] for row, length in enumerate(LENGTHS)]) for state in states()]
bounds = torch.tensor([0, 4, 7], dtype=torch.int32, device="musa")
params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_q_padded=bounds)
found = attention()(*packed, None, packed_seq_params=params)
torch.testing.assert_close(found[:3], alone[0].squeeze(1))
torch.testing.assert_close(found[4:6], alone[1].squeeze(1))
refused(attention(AttnMaskType.padding), *packed, None, packed_seq_params=params)
refused(attention(), *(state[:6] for state in packed), None, packed_seq_params=params)
