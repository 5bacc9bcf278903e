"""Megatron's router calls a Transformer Engine function by a name that is not bound without Transformer Engine."""

from typing import Any

from verl_musa.patching import MISSING, Patch, RemoveWhen

MODULE = "megatron.core.transformer.moe.moe_utils"
TARGET = f"{MODULE}:te_general_gemm"
USER = f"{MODULE}:RouterGatingLinearFunction"

PATCH = Patch(
    id="megatron-te-general-gemm",
    summary="without Transformer Engine the router's linear layer takes its own torch path",
    distribution="megatron-core",
    versions=">=0.16,<0.18",
    fingerprints={
        "megatron.core.transformer.moe.moe_utils:te_general_gemm": {
            "0.16.1": "a17b9f0f727e182fcd1535efa6cc7c2cc6c25519e777b52d11e4a00f4bd638c4",
        },
        "megatron.core.transformer.moe.moe_utils:RouterGatingLinearFunction": {
            "0.16.1": "b4768e542781fa07bdf00fcd2df34d6503328310a1f54925de8d69e8128f3788",
        },
    },
    reason="The function asks whether te_general_gemm is None, but without Transformer Engine the name is not bound: "
    "every forward of a mixture of experts ends in a NameError.",
    source="Megatron-Core 0.16.1, core/transformer/moe/moe_utils.py; 0.18.0 binds the name to None",
    remove_when=RemoveWhen(text="the name is always bound", version=">=0.18"),
    without="name 'te_general_gemm' is not defined",
)


@PATCH.attribute(TARGET)
def _bound(current: Any) -> Any:
    return None if current is MISSING else current
