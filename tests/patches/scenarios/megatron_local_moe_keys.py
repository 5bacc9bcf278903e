"""What a model on the device would save: experts' norm under its own key, a dense layer's norm fused, as before."""

from support import start_megatron

start_megatron()

from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402


def saved_norm(experts: int | None) -> str:
    """Return the key, without the layer, of the norm before the MLP in the checkpoint of a one-layer model."""
    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        num_moe_experts=experts,
        add_bias_linear=False,
        normalization="RMSNorm",
        persist_layer_norm=False,
    )
    spec = get_gpt_layer_local_spec(num_experts=experts, normalization="RMSNorm")
    model = GPTModel(config, spec, vocab_size=16, max_sequence_length=4).to("musa")
    saved = model.sharded_state_dict()["decoder.layers.0.pre_mlp_layernorm.weight"]
    if saved.data.device.type != "musa":
        raise SystemExit(f"the norm is on {saved.data.device}")
    return str(saved.key).removeprefix("decoder.layers.")


if (key := saved_norm(4)) != "pre_mlp_layernorm.weight":
    raise SystemExit(f"the norm before the experts is saved as {key}")
if (key := saved_norm(None)) != "mlp.linear_fc1.layer_norm_weight":
    raise SystemExit(f"a dense layer's norm is saved as {key}")
