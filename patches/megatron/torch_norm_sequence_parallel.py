"""Megatron's torch norm refuses sequence parallelism, although it needs no more than a mark on its parameters."""

import copy
import functools
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

TARGET = "megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__"

PATCH = Patch(
    id="megatron-torch-norm-sequence-parallel",
    summary="torch's LayerNorm and RMSNorm work with sequence parallelism",
    distribution="megatron-core",
    versions=">=0.16,<0.19",
    fingerprints={
        TARGET: {
            "0.16.1": "41d22e42e3971322f4b43bf5b0aedad7109c9c65f4324700929a070971140214",
            "0.18.0": "1a578734f3b315cd9c44ec8028899c48667530af322967457fc3536bf988842f",
        },
    },
    reason="With tensor parallelism above 1 verl turns sequence parallelism on, and without Transformer Engine and Apex "
    "the only norm asserts that it is off. A norm acts on each token alone; what it needs is the mark that makes "
    "Megatron sum its weight's gradient over the tensor-parallel ranks.",
    source="Megatron-Core 0.16.1, core/transformer/torch_norm.py and core/distributed/finalize_model_grads.py",
    remove_when=RemoveWhen(
        text="WrappedTorchNorm accepts sequence_parallel, or Transformer Engine is used on MUSA"
    ),
    without="sequence parallel not supported by torch LayerNorm",
)


@PATCH.wrap(TARGET)
def _with_sequence_parallel(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new(cls: type, config: Any, *args: Any, **kwargs: Any) -> Any:
        if not config.sequence_parallel:
            return original(cls, config, *args, **kwargs)
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = original(cls, plain, *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = True
        return norm

    return new
