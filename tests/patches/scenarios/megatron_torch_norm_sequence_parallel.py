"""A norm must be made with sequence parallelism on, carry the mark, and leave the configuration alone."""

from types import SimpleNamespace

from megatron.core.transformer.torch_norm import WrappedTorchNorm


def make(*, sequence_parallel: bool) -> tuple[object, bool]:
    config = SimpleNamespace(
        layernorm_zero_centered_gamma=False,
        persist_layer_norm=False,
        sequence_parallel=sequence_parallel,
        memory_efficient_layer_norm=False,
        normalization="RMSNorm",
    )
    norm = WrappedTorchNorm(config=config, hidden_size=4, eps=1e-6)
    if config.sequence_parallel is not sequence_parallel:
        raise SystemExit("the configuration was changed")
    return norm, getattr(norm.weight, "sequence_parallel", False)


norm, marked = make(sequence_parallel=True)
if type(norm).__name__ != "RMSNorm" or not marked:
    raise SystemExit("the norm's weight is not marked")
if make(sequence_parallel=False)[1]:
    raise SystemExit("the norm's weight is marked without sequence parallelism")
