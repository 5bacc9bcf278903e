"""After torchada's own patches, the alias of autocast and lists of backends must mean MUSA too."""

import torch
from support import import_torchada

import_torchada()
if torch.autocast is not torch.amp.autocast:
    raise SystemExit("torch.autocast is not redirected")
weight = torch.ones(2, 2, device="cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    product = weight @ weight
if product.dtype is not torch.bfloat16:
    raise SystemExit(f"a product under autocast is {product.dtype}")
store = torch.distributed.HashStore()
torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)


def backends(group: torch.distributed.ProcessGroup) -> tuple[str, ...]:
    """Return the name of the group's backend on the host and on the device, having used both."""
    for device in ("cpu", "musa"):
        torch.distributed.all_reduce(torch.ones(1, device=device), group=group)
    return tuple(group._get_backend(torch.device(device)).name() for device in ("cpu", "musa"))


for group in (
    torch.distributed.group.WORLD,
    torch.distributed.new_group([0], None, "cpu:gloo,cuda:nccl"),
    torch.distributed.new_group(ranks=[0]),
):
    if backends(group) != ("gloo", "mccl"):
        raise SystemExit(f"backends: {backends(group)}")
if torch.distributed.new_group([0], backend="nccl")._get_backend(torch.device("musa")).name() != "mccl":
    raise SystemExit("a single backend is no longer translated")
