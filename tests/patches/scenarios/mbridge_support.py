"""A bridge and a model for a tiny Qwen3, dense or with experts, as verl builds them."""

from __future__ import annotations

from typing import Any

OPTIONS = {
    "attention_backend": "local",
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
}
EXPERT_OPTIONS = {"moe_grouped_gemm": False, "moe_router_dtype": "fp32"}


def tiny_config(experts: int = 0) -> Any:
    """Return a Hugging Face configuration of two layers, with ``experts`` experts of which two compute a token."""
    from transformers import Qwen3Config, Qwen3MoeConfig

    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 32,
        "tie_word_embeddings": False,
    }
    if experts:
        chosen = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
        config = Qwen3MoeConfig(**sizes, **chosen, norm_topk_prob=True, router_aux_loss_coef=0.0)
    else:
        config = Qwen3Config(**sizes)
    # transformers 5 keeps it in a mapping; verl hands mbridge a configuration that has it as an attribute.
    config.rope_theta = 10000.0
    return config


def build(config: Any) -> tuple[Any, Any]:
    """Return (bridge, model in float32 on the device); call start_megatron before."""
    import torch
    from mbridge import AutoBridge

    bridge = AutoBridge.from_config(config, dtype=torch.float32)
    bridge.set_extra_args(**OPTIONS, **(EXPERT_OPTIONS if hasattr(config, "num_experts") else {}))
    (model,) = bridge.get_model(wrap_with_ddp=False, fp16=False, bf16=False)
    return bridge, model
