"""Optimizers with and without sharding must take MUSA parameters of each dtype, clip their gradients and step."""

import torch
from support import linear_with_optimizer, start_megatron

start_megatron()
for sharded in (True, False):
    for dtype in (torch.bfloat16, torch.float32):
        module, optimizer, train = linear_with_optimizer(sharded=sharded, dtype=dtype)
        norm = train()
        if abs(norm - 3 * 8**0.5) > 1e-3:
            raise SystemExit(f"the gradient's norm is {norm}")
        # Adam's first step is the learning rate, whatever the gradient.
        expected = torch.full((2, 4), 1 - optimizer.config.lr)
        torch.testing.assert_close(module.weight.detach().float().cpu(), expected, atol=4e-3, rtol=0)
if torch.ones(1, device="musa").type() != "torch.musa.FloatTensor":
    raise SystemExit("Tensor.type() changed for everybody")
