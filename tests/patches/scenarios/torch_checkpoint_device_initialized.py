"""With a torch.musa whose flag was copied too early, dropout must draw the same mask when it is recomputed."""

import torch
import torch_musa
from torch.utils.checkpoint import checkpoint

# What torch_musa 2.7.1 does by importing the name before it is set; the simulator's own flag is a live one.
torch_musa._initialized = False


def gradient_follows_mask(*, use_reentrant: bool) -> bool:
    ones = torch.ones(256, device="musa", requires_grad=True)
    output = checkpoint(torch.nn.functional.dropout, ones, use_reentrant=use_reentrant)
    output.sum().backward()
    return torch.equal(ones.grad, output.detach())


for use_reentrant in (True, False):
    if not gradient_follows_mask(use_reentrant=use_reentrant):
        raise SystemExit("the device's random state is not saved: gradients of another dropout mask")
