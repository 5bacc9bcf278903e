"""Code written for CUDA, run by torchada on the simulated device, on each rank of a two-rank job."""

from __future__ import annotations

import datetime as dt

import sim_harness
import torch
import torch_musa
import torchada
from sim_harness import RANK, WORLD
from torch import nn


def device_is_musa() -> None:
    x = torch.ones(2).cuda()
    y = torch.ones(2, device=f"cuda:{RANK}")
    model = nn.Linear(2, 2).to("cuda")
    found = {x.device.type, y.device.type, model.weight.device.type}
    if found != {"musa"} or y.device.index != RANK:
        raise AssertionError(f"expected every tensor on musa, found {found}")
    if torch.cuda.device_count() != WORLD or torch.cuda.current_device() != RANK:
        raise AssertionError(f"torch.cuda sees {torch.cuda.device_count()} devices")


def availability_stays_false() -> None:
    """By torchada's design: libraries that ask must not take CUDA paths."""
    if torch.cuda.is_available() or not torch.musa.is_available():
        raise AssertionError("expected torch.cuda unavailable and torch.musa available")


def nccl_becomes_mccl() -> None:
    import torch.distributed as dist

    torch_musa.mccl.reset_counters()
    store = dist.FileStore(sim_harness.store_path("main"), WORLD)
    limit = dt.timedelta(seconds=60)
    dist.init_process_group("nccl", store=store, rank=RANK, world_size=WORLD, timeout=limit)
    if dist.get_backend() != "mccl":
        raise AssertionError(f"expected backend mccl, found {dist.get_backend()}")
    x = torch.full((4,), RANK + 1.0, device="cuda")
    dist.all_reduce(x)
    group = dist.new_group(list(range(WORLD)), backend="nccl")
    dist.all_reduce(x, group=group)
    if x.tolist() != [6.0] * 4:
        raise AssertionError(f"expected sixes, found {x}")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1).cuda(), device_ids=[RANK])
    model(x[None]).sum().backward()
    calls = torch_musa.mccl.counters().get("all_reduce", {}).get("calls", 0)
    if calls < 3:
        raise AssertionError(f"expected at least 3 all_reduce calls through mccl, found {calls}")
    dist.destroy_process_group()


def streams_and_events() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(3, device="cuda") * 2
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    if x.sum().item() != 6.0 or torch.cuda.memory_allocated() <= 0:
        raise AssertionError("the stream's result or the memory statistics are wrong")


def autocast_of_amp() -> None:
    """torch.amp.autocast("cuda") is redirected; torch.autocast("cuda") is not (seen with 0.1.103)."""
    layer = nn.Linear(2, 2).cuda()
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        inside = layer(torch.ones(1, 2, device="cuda"))
    if inside.dtype is not torch.bfloat16:
        raise AssertionError(f"expected bfloat16 under autocast, found {inside.dtype}")


def main() -> None:
    """All checks."""
    checks = sim_harness.Checks()
    torch.cuda.set_device(RANK)
    with checks.check("platform"):
        if not torchada.is_musa_platform():
            raise AssertionError("torchada does not see the musa platform")
    for one in (
        device_is_musa,
        availability_stays_false,
        nccl_becomes_mccl,
        streams_and_events,
        autocast_of_amp,
    ):
        with checks.check(one.__name__):
            one()
    checks.write()


if __name__ == "__main__":
    main()
