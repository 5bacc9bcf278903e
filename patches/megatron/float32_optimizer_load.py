"""Megatron's distributed optimizer cannot load its state where the model itself is float32."""

from collections.abc import Callable

from verl_musa.patching import Patch, RemoveWhen

TARGET = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer._set_main_param_and_optimizer_states"

PATCH = Patch(
    id="megatron-float32-optimizer-load",
    summary="a float32 run resumes: the optimizer's state is loaded without recording gradients",
    distribution="megatron-core",
    versions=">=0.16,<0.19",
    fingerprints={
        TARGET: {
            "0.16.1": "e70fb29c0039ce2b47f4880007b8e92df7d1101630fee6f7eb82e44358437e00",
            "0.18.0": "2b9f15d9710fa3586dceb1df0586ddd49cac54f905dcb336da23340fc71c9dd9",
        },
    },
    reason="A float32 parameter needs no copy of itself, so the optimizer's main parameter is a view of the model's, a leaf that "
    "requires gradients. Loading copies into it with gradients on, which torch refuses. With bfloat16 the main parameter is a tensor "
    "of its own, and nothing is refused.",
    source="Megatron-Core 0.16.1, core/optimizer/distrib_optimizer.py; seen when a float32 run of verl resumed",
    remove_when=RemoveWhen(text="the optimizer's state is loaded under torch.no_grad"),
    without="a view of a leaf Variable that requires grad is being used in an in-place operation",
)


@PATCH.wrap(TARGET)
def _without_gradients(original: Callable[..., None]) -> Callable[..., None]:
    import torch

    return torch.no_grad()(original)
