"""verl's own converter from Hugging Face to Megatron-Core, made to run without an accelerator. A process of its own.

    VERL_PLATFORM=musa python ci/bench/verl_converter.py MODEL OUTPUT

verl 0.9.1 ships it as ``scripts/converter_hf_to_mcore.py``. It runs here as it is, on the simulated device, with torchada
and this project's patches (``environment`` says how), and with what it takes from Transformer Engine, which has no CPU
build, replaced: Megatron-Core's own layers in place of Transformer Engine's, and the names under which it looks for two
norms that these keep elsewhere.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

SCRIPT = "scripts.converter_hf_to_mcore"
UNFUSED = (
    "persist_layer_norm",
    "gradient_accumulation_fusion",
    "masked_softmax_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
)
"""Options of Megatron-Core that need Apex or Transformer Engine."""


def environment(megatron: Path) -> dict[str, str]:
    """What the process needs in its environment; ``megatron`` holds Megatron-Core and torchada."""
    from verl_musa.patching import activation_env

    root = Path(__file__).parents[2]
    return {
        **activation_env(simulated=True, allow_drift=(), off=()),
        "PYTHONPATH": os.pathsep.join((str(root), str(megatron))),
        "VERL_PLATFORM": "musa",
        "MUSA_SIM_DEVICES": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }


def without_transformer_engine() -> None:
    """Let verl build the model of Megatron-Core's own layers."""
    from verl.models.mcore import model_initializer
    from verl.utils import megatron_utils

    make_spec, make_model = model_initializer.get_gpt_decoder_block_spec, megatron_utils.get_model

    def spec(config: Any, **options: Any) -> Any:
        for name in UNFUSED:
            setattr(config, name, False)
        return make_spec(config, **{**options, "use_transformer_engine": False, "normalization": "RMSNorm"})

    def model(*arguments: Any, **options: Any) -> Any:
        found = make_model(*arguments, **options)
        for layer in found[0].module.decoder.layers:
            # Beside the module's parameters, so that the checkpoint does not hold the norms twice.
            attention, mlp = layer.self_attention.linear_qkv, layer.mlp.linear_fc1
            vars(attention)["layer_norm_weight"] = layer.input_layernorm.weight
            vars(mlp)["layer_norm_weight"] = layer.pre_mlp_layernorm.weight
        return found

    model_initializer.get_gpt_decoder_block_spec = spec
    megatron_utils.get_model = model


def main(source: str, output: str) -> None:
    """Run the converter."""
    import verl  # noqa: F401  (its plugins redirect torch.cuda before Megatron-Core is imported)

    without_transformer_engine()
    sys.argv = [SCRIPT, "--hf_model_path", source, "--output_path", output]
    runpy.run_module(SCRIPT, run_name="__main__")


if __name__ == "__main__":  # the processes that it starts to write import this file
    main(*sys.argv[1:])
