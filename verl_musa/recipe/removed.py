"""Options of older verl trees that public scripts still carry, and what stands in their place in verl 0.9.1."""

from __future__ import annotations

import re

REMOVED = {
    r"(actor_rollout_ref\.(actor|ref)|critic)\.megatron\.grad_offload": "param_offload frees gradients too",
    r"(actor_rollout_ref\.(actor|ref)|critic)\.load_weight": "weights are always loaded",
    r"(actor_rollout_ref\.(actor|ref)|critic)\.megatron\.(extra|param_dtype)": "there is dtype",
    r"trainer\.use_legacy_worker_impl": "there is one implementation of the workers left",
    r"actor_rollout_ref\.rollout\.(chat_scheduler|micro_batch_size)": "rollouts go through agent loops (rollout.agent)",
    r"actor_rollout_ref\.rollout\.tp_size": "the key is tensor_model_parallel_size",
    r"actor_rollout_ref\.actor\.use_loss_generation_mask": "there is loss_agg_mode",
    r"actor_rollout_ref\.model\.(use_liger_kernel|enable_fused_kernels)": "the keys are use_liger and use_fused_kernels",
    r"actor_rollout_ref\.rollout\.val_kwargs\.max_new_tokens": "validation uses data.max_response_length",
    r"data\.(max_new_tokens|val_max_response_length)": "the key is data.max_response_length",
}
"""Pattern of the key -> what to know."""


def replacement(path: str) -> str | None:
    """What stands in the place of ``path``, which verl 0.9.1 does not have; None where it is no option that we know of."""
    return next((hint for pattern, hint in REMOVED.items() if re.fullmatch(pattern, path)), None)
