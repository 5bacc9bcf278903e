"""Experts' norm must keep its own key; a dense layer's stays fused."""

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

NORM = "pre_mlp_layernorm."


def keys(**options: object) -> dict[str, str]:
    return dict(
        get_gpt_layer_local_spec(normalization="RMSNorm", **options).submodules.sharded_state_dict_keys_map
    )


if NORM in keys(num_experts=4):
    raise SystemExit(f"the norm before the experts is saved as {keys(num_experts=4)[NORM]}")
if len(keys(num_experts=4)) != 1 or keys()[NORM] != "mlp.linear_fc1.layer_norm_":
    raise SystemExit("other keys changed")
