"""An optimizer that has not stepped must describe itself, and its parameters stay what they were."""

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

parameter = torch.nn.Parameter(torch.ones(3))
optimizer = DistributedOptimizer.__new__(DistributedOptimizer)
optimizer.optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.5)
optimizer.grad_scaler = None
described = optimizer.state_dict()["optimizer"]["param_groups"][0]
if described["step"] != 0 or described["lr"] != 0.1:
    raise SystemExit(f"described as {described}")
if not torch.equal(parameter, torch.ones(3)) or optimizer.optimizer.param_groups[0]["lr"] != 0.1:
    raise SystemExit("describing the optimizer changed it")
parameter.grad = torch.ones(3)
optimizer.optimizer.step()
if optimizer.state_dict()["optimizer"]["param_groups"][0]["step"] != 1:
    raise SystemExit("the step is wrong after a step")
