"""An optimizer that loaded its own state must take the next step as if it had not, with every parameter's step its own."""

import copy
import io
import itertools
from typing import Any

import torch
from support import start_megatron

start_megatron()
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

layer = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).to("musa").bfloat16()
shape = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
model = DistributedDataParallel(
    shape, DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=False), layer
)
config = OptimizerConfig(optimizer="adam", lr=0.1, bf16=True, use_distributed_optimizer=True)
(optimizer,) = get_megatron_optimizer(config, [model]).chained_optimizers
samples = torch.ones(3, 4, device="musa", dtype=torch.bfloat16)


def train() -> list[float]:
    """Take a step; return how many steps each parameter has taken."""
    model.zero_grad_buffer()
    model(samples).float().square().sum().backward()
    model.finish_grad_sync()
    optimizer.step()
    return [float(state["step"]) for state in optimizer.optimizer.state.values()]


def saved() -> dict[str, Any]:
    """The optimizer's state as a checkpoint gives it back: its tensors, and the steps of the template that it was loaded into."""
    file = io.BytesIO()
    torch.save(optimizer.get_parameter_state_dp_reshardable(), file)
    file.seek(0)
    tensors = torch.load(file, weights_only=True)
    for buckets in tensors[0].values():
        for state in itertools.chain.from_iterable(buckets):
            state.update(padding=False, step=torch.tensor(0.0))
    described = copy.deepcopy(optimizer.state_dict())
    return {**described, "param_state": tensors, "param_state_sharding_type": "dp_reshardable"}


train()
optimizer.load_state_dict(saved())
steps = train()
if len(steps) < 2 or set(steps) != {2.0}:
    raise SystemExit(f"parameters do not count their own steps: {steps} after the second step")
