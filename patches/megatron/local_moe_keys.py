"""A mixture of experts in Megatron's local layer spec is saved under another key than in the Transformer Engine spec."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "megatron.core.models.gpt.gpt_layer_specs"
TARGET = f"{MODULE}:get_gpt_layer_local_spec"
MAKER = f"{MODULE}:get_gpt_layer_local_submodules"
DENSE_ONLY = "pre_mlp_layernorm."

PATCH = Patch(
    id="megatron-local-moe-keys",
    summary="MoE checkpoints written with the local spec load into the Transformer Engine spec, and the other way round",
    distribution="megatron-core",
    versions=">=0.16,<0.19",
    fingerprints={
        "megatron.core.models.gpt.gpt_layer_specs:get_gpt_layer_local_spec": {
            "0.16.1": "2ca2b61d2e54dea76bc62238642bdcad7f97152d5cccc7892b52629f08477d99",
            "0.18.0": "9d496e6e6cf6949842a95bcc773da45ae02e26261015c3ecea2db5870a476231",
        },
        "megatron.core.models.gpt.gpt_layer_specs:get_gpt_layer_local_submodules": {
            "0.16.1": "absent",
            "0.18.0": "9983b0eca9b9a029bd85b086db852f7022b37933b6e474fcffbd8f44a5ba086b",
        },
    },
    reason="The local spec maps the norm before the MLP to `mlp.linear_fc1.layer_norm_weight` for experts too, where "
    "the Transformer Engine spec keeps `pre_mlp_layernorm.weight`, because experts have no fused norm.",
    source="Megatron-LM pull request 6270 (open); seen as KeyError: decoder.layers.pre_mlp_layernorm.weight",
    remove_when=RemoveWhen(
        text="the local spec leaves the key alone when it has experts (pull request 6270 is merged)"
    ),
    without="the norm before the experts is saved as mlp.linear_fc1.layer_norm_",
)


@PATCH.wrap(TARGET)
def _experts_keep_their_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_gpt_layer_local_spec(*args: Any, **kwargs: Any) -> Any:
        spec = original(*args, **kwargs)
        experts = signature.bind_partial(*args, **kwargs).arguments.get("num_experts")
        if experts is not None:
            keys = spec.submodules.sharded_state_dict_keys_map
            spec.submodules.sharded_state_dict_keys_map = {
                name: value for name, value in keys.items() if name != DENSE_ONLY
            }
        return spec

    return get_gpt_layer_local_spec
