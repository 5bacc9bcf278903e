"""Experts must compute with the weights that were loaded last, and still hold them, after vLLM's CPU build prepared them twice."""

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

EXPERTS, CHOSEN, HIDDEN, WIDTH, TOKENS = 4, 2, 64, 32, 5


class Layer(torch.nn.Module):
    """What the method asks of vLLM's layer of experts."""

    use_grouped_topk = False
    renormalize = True
    scoring_func = "softmax"
    custom_routing_function = None
    activation = MoEActivation.SILU
    global_num_experts = EXPERTS
    expert_map = None
    apply_router_weight_on_input = False
    num_expert_group = None
    topk_group = None
    e_score_correction_bias = None
    routed_scaling_factor = 1.0

    def __init__(self, config: FusedMoEConfig) -> None:
        super().__init__()
        self.moe_config = config

    def _expert_routing_tables(self) -> None:
        return None


def expected(x: torch.Tensor, router: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """(tokens, hidden): two experts of each token, one after the other, in plain torch."""
    logits, chosen = router.topk(CHOSEN, dim=-1)
    out = torch.zeros_like(x)
    for token in range(TOKENS):
        for share, expert in zip(logits[token].softmax(-1), chosen[token], strict=True):
            gate, up = (w13[expert] @ x[token]).chunk(2)
            out[token] += share * (w2[expert] @ (torch.nn.functional.silu(gate) * up))
    return out


torch.manual_seed(0)
with torch.no_grad(), set_current_vllm_config(VllmConfig()):
    config = FusedMoEConfig(
        num_experts=EXPERTS,
        experts_per_token=CHOSEN,
        hidden_dim=HIDDEN,
        intermediate_size=WIDTH,
        num_local_experts=EXPERTS,
        num_logical_experts=EXPERTS,
        activation=MoEActivation.SILU,
        device="cpu",
        routing_method=RoutingMethodType.Renormalize,
        moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
        in_dtype=torch.float32,
    )
    layer, method = Layer(config), UnquantizedFusedMoEMethod(config)
    method.create_weights(layer, EXPERTS, HIDDEN, WIDTH, torch.float32)
    for update in (1, 2):
        w13, w2 = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN) / 8, torch.randn(EXPERTS, HIDDEN, WIDTH) / 8
        layer.w13_weight.data.copy_(w13)
        layer.w2_weight.data.copy_(w2)
        method.process_weights_after_loading(layer)
        x, router = torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, EXPERTS)
        found = method.apply_monolithic(layer, x.clone(), router.clone())
        difference = float((found - expected(x, router, w13, w2)).abs().max())
        if difference > 1e-4:
            raise SystemExit(f"update {update}: computed with unpacked weights, {difference:.1e} away")
    if not (torch.equal(layer.w13_weight, w13) and torch.equal(layer.w2_weight, w2)):
        raise SystemExit("the layer holds other weights than those that were loaded")
