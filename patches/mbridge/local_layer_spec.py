"""mbridge builds its layers from Transformer Engine's modules only, which MUSA does not have."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "mbridge.core.llm_bridge"
TARGET = f"{MODULE}:LLMBridge._get_transformer_layer_spec"

PATCH = Patch(
    id="mbridge-local-layer-spec",
    summary="without Transformer Engine, models are built from Megatron's own (local) layers",
    distribution="mbridge",
    versions=">=0.15.1,<0.16",
    fingerprints={
        "mbridge.core.llm_bridge:LLMBridge._get_transformer_layer_spec": {
            "0.15.1": "ff53d23d305367746b58d4919a7d7991916fd30d0e1d4cb6766a27a3aa3da25f",
        },
    },
    reason="The bridge asks Megatron for the Transformer Engine spec by a literal, and without Transformer Engine Megatron "
    "does not bind the names of that spec.",
    source="mbridge 0.15.1, core/llm_bridge.py; Megatron-Core 0.16.1, core/models/gpt/gpt_layer_specs.py",
    remove_when=RemoveWhen(
        text="mbridge chooses the local spec by itself, or Transformer Engine is used on MUSA"
    ),
    without="name 'TENorm' is not defined",
)


@PATCH.unless
def _with_transformer_engine(_module: ModuleType) -> str | None:
    from megatron.core.models.gpt import gpt_layer_specs

    return "Transformer Engine is installed" if gpt_layer_specs.HAVE_TE else None


@PATCH.wrap(TARGET)
def _local(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _get_transformer_layer_spec(self: Any, vp_stage: int | None = None) -> Any:
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

        # The bridge's model provider reads it; every supported Megatron-Core has the argument.
        self.has_vp_stage = True
        normalization = self.config.normalization
        return get_gpt_decoder_block_spec(
            self.config, use_transformer_engine=False, normalization=normalization, vp_stage=vp_stage
        )

    return _get_transformer_layer_spec
