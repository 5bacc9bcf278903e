"""A distributed optimizer that has not stepped must describe itself, and its parameters stay what they were."""

import torch
from support import linear_with_optimizer, start_megatron

start_megatron()
module, optimizer, train = linear_with_optimizer(sharded=True, weight_decay=0.5)
described = optimizer.state_dict()["optimizer"]["param_groups"][0]
if described["step"] != 0 or described["lr"] != optimizer.config.lr:
    raise SystemExit(f"described as {described}")
if not torch.equal(module.weight.cpu(), torch.ones(2, 4)):
    raise SystemExit("describing the optimizer changed the model")
train()
if optimizer.state_dict()["optimizer"]["param_groups"][0]["step"] != 1:
    raise SystemExit("the step is wrong after a step")
if torch.equal(module.weight.cpu(), torch.ones(2, 4)):
    raise SystemExit("the step did not change the model")
