"""A linear layer must still have its weight, and use it, after vLLM's CPU build prepared it, twice in a row."""

import torch
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

layer = torch.nn.Linear(64, 32, bias=False)
x = torch.randn(3, 64)
for value in (1.0, 2.0):
    with torch.no_grad():
        layer.weight.fill_(value)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    if layer.weight.shape != (32, 64):
        raise SystemExit(f"the weight is gone: {tuple(layer.weight.shape)}")
    with torch.no_grad():
        found = layer.cpu_linear(x, layer.weight, None)
        torch.testing.assert_close(found, x @ torch.full((64, 32), value), atol=1e-4, rtol=1e-4)
