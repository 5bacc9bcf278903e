"""After torchada's own patches, the alias of autocast and lists of backends must mean MUSA too."""

import sys
from typing import Any

import torch
from support import Stub, load

groups: list[Any] = []


def init_process_group(backend: Any = None, **_: Any) -> None:
    groups.append(backend)


def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, **_: Any) -> None:
    groups.append(backend)


torch.distributed.init_process_group, torch.distributed.new_group = init_process_group, new_group
sys.modules["torch_musa"] = Stub("torch_musa")
module = load("torchada._patch", distribution="torchada", stubs=())
module.is_musa_platform = lambda: True
module._patch_registry[:] = [module._patch_autocast, module._patch_distributed_backend]
plain = torch.amp.autocast
module.apply_patches()
if torch.amp.autocast is plain:
    raise SystemExit("torchada did not run")
if torch.autocast is not torch.amp.autocast:
    raise SystemExit("torch.autocast is not redirected")
torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
torch.distributed.init_process_group(backend="nccl")
torch.distributed.new_group([0], None, "cpu:gloo,cuda:nccl")
torch.distributed.new_group(ranks=[0])
if groups != ["cpu:gloo,musa:mccl", "mccl", "cpu:gloo,musa:mccl", None]:
    raise SystemExit(f"backends: {groups}")
