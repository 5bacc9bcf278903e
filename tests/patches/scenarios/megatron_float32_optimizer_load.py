"""A distributed optimizer must go back to a state of its own, in float32 and in bfloat16."""

import io

import torch
from support import linear_with_optimizer, start_megatron

start_megatron()
for dtype in (torch.bfloat16, torch.float32):
    module, optimizer, train = linear_with_optimizer(sharded=True, dtype=dtype)
    (sharded,) = optimizer.chained_optimizers
    train()
    file = io.BytesIO()
    torch.save(sharded.get_parameter_state_dp_reshardable(), file)
    weight = module.weight.detach().clone()
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    for states in kept[0].values():
        for bucket in states:
            for state in bucket:
                state["padding"] = False  # as a checkpoint has it
    train()
    after = module.weight.detach().clone()
    if torch.equal(after, weight):
        raise SystemExit("the second step did not change the model")
    sharded.load_parameter_state_from_dp_reshardable(kept)
    if dtype == torch.float32 and not torch.equal(module.weight, weight):
        raise SystemExit("the parameters did not come back")
    if not module.weight.requires_grad:
        raise SystemExit("the parameter needs no gradient any more")
    train()
    if not torch.equal(module.weight, after):
        raise SystemExit("the step from the loaded state is another one")
