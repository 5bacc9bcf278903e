"""The router's linear layer must run without Transformer Engine, forwards and backwards."""

import torch
from megatron.core.transformer.moe.moe_utils import router_gating_linear

tokens = torch.randn(3, 4, requires_grad=True)
weight = torch.randn(2, 4, requires_grad=True)
scores = router_gating_linear(tokens, weight, None, torch.float32)
scores.sum().backward()
torch.testing.assert_close(scores, tokens @ weight.T)
torch.testing.assert_close(tokens.grad, weight.sum(0).expand(3, 4))
