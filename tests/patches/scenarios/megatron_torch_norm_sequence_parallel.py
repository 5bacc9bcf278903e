"""A norm must be made with sequence parallelism on, carry the mark, and leave the configuration alone."""

import torch
from support import start_megatron

start_megatron()

from megatron.core.transformer.torch_norm import WrappedTorchNorm  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402


def make(*, sequence_parallel: bool) -> torch.nn.Module:
    config = TransformerConfig(
        num_layers=1,
        hidden_size=4,
        num_attention_heads=2,
        normalization="RMSNorm",
        persist_layer_norm=False,
        tensor_model_parallel_size=2,
        sequence_parallel=sequence_parallel,
    )
    norm = WrappedTorchNorm(config=config, hidden_size=4, eps=1e-6).to("musa")
    if config.sequence_parallel is not sequence_parallel:
        raise SystemExit("the configuration was changed")
    return norm


norm = make(sequence_parallel=True)
if type(norm).__name__ != "RMSNorm" or not getattr(norm.weight, "sequence_parallel", False):
    raise SystemExit("the norm's weight is not marked")
torch.testing.assert_close(norm(torch.full((2, 4), 3.0, device="musa")).cpu(), torch.ones(2, 4))
if getattr(make(sequence_parallel=False).weight, "sequence_parallel", False):
    raise SystemExit("the norm's weight is marked without sequence parallelism")
