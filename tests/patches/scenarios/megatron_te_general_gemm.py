"""A mixture of experts' router must run without Transformer Engine, forwards and backwards."""

import torch
from support import start_megatron

start_megatron()

from megatron.core.transformer.moe.moe_utils import router_gating_linear  # noqa: E402

tokens = torch.randn(3, 4).to("musa").requires_grad_()
weight = torch.randn(2, 4).to("musa").requires_grad_()
scores = router_gating_linear(tokens, weight, None, torch.float32)
scores.sum().backward()
torch.testing.assert_close(scores, tokens @ weight.T)
torch.testing.assert_close(tokens.grad, weight.sum(0).expand(3, 4))
