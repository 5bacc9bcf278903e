"""DDP, FSDP2, FSDP1, tensor parallel and distributed checkpoints: musa with mccl against cpu with gloo.

One group carries both devices, so the same ranks train the same model on each and compare bit for bit.
"""

from __future__ import annotations

import copy
import datetime as dt
import warnings
from collections.abc import Callable
from typing import Any

import sim_harness
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_musa
from sim_harness import FOLDER, RANK, WORLD
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

DEVICE = torch.device("musa", RANK)
DEVICES = (torch.device("cpu"), DEVICE)
WIDTH = 12
STEPS = 3


class Block(nn.Module):
    """A gated feed-forward block with a norm: [batch, WIDTH] to [batch, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def fresh_model() -> nn.Sequential:
    """The same two blocks on every rank, on cpu."""
    torch.manual_seed(5)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 3, bias=False))


def batch(step: int, rank: int, device: torch.device) -> Any:
    """[6, WIDTH] inputs of one rank and step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, WIDTH, generator=generator).to(device)


def full(tensor: Any) -> Any:
    """A parameter's whole value on cpu, sharded or not."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def train(
    model: Any, device: torch.device, *, rank: int = RANK, mixed: bool = False
) -> tuple[list[float], dict[str, Any]]:
    """Losses of STEPS steps of AdamW, and the parameters after them.

    ``mixed``: some parameters are DTensors and some are not, which torch's fused norms and updates refuse.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=False if mixed else None)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(step, rank, device)).square().mean()
        loss.backward()
        if not mixed:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: full(p) for name, p in model.named_parameters()}


def same(found: Any, expected: Any, atol: float = 0.0) -> None:
    losses, parameters = found
    if losses[0] == losses[-1]:
        raise AssertionError(f"nothing was learnt: {losses}")
    torch.testing.assert_close(losses, expected[0], rtol=0, atol=atol)
    torch.testing.assert_close(parameters, expected[1], rtol=0, atol=atol)


def counted(*names: str) -> None:
    """Raises unless mccl counted calls under each name since the last look."""
    counters = torch_musa.mccl.counters()
    torch_musa.mccl.reset_counters()
    missing = [name for name in names if counters.get(name, {}).get("calls", 0) == 0]
    if missing:
        raise AssertionError(f"mccl carried no {missing}; it carried {counters}")


def ddp() -> None:
    results = []
    for device in DEVICES:
        model = fresh_model().to(device)
        ids = None if device.type == "cpu" else [device.index]
        results.append(
            train(nn.parallel.DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=0.001), device)
        )
    counted("all_reduce", "broadcast")
    same(results[1], results[0])


def sharded(device: torch.device, policy: MixedPrecisionPolicy | None = None) -> nn.Sequential:
    """The model under FSDP2 on one device, its blocks sharded apart."""
    mesh = init_device_mesh(device.type, (WORLD,))
    model = fresh_model().to(device)
    options = {} if policy is None else {"mp_policy": policy}
    for block in model[:2]:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fsdp2() -> None:
    results = [train(sharded(device), device) for device in DEVICES]
    counted("all_gather_into_tensor", "reduce_scatter_tensor")
    same(results[1], results[0])


def fsdp2_bfloat16() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    results = [train(sharded(device, policy), device) for device in DEVICES]
    same(results[1], results[0])
    counted("all_gather_into_tensor", "reduce_scatter_tensor")


def fsdp1() -> None:
    model = FullyShardedDataParallel(fresh_model().to(DEVICE), device_id=DEVICE, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    reference = nn.parallel.DistributedDataParallel(fresh_model())
    reference_optimizer = torch.optim.AdamW(reference.parameters(), lr=0.05)
    for step in range(STEPS):
        losses = []
        for one, opt, device in ((model, optimizer, DEVICE), (reference, reference_optimizer, DEVICES[0])):
            opt.zero_grad()
            loss = one(batch(step, RANK, device)).square().mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-6)
    counted("reduce_scatter_tensor")
    with FullyShardedDataParallel.summon_full_params(model):
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(full(mine), full(theirs), rtol=0, atol=1e-5)


def tensor_parallel() -> None:
    plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    results = []
    for device in DEVICES:
        model = fresh_model().to(device)
        for block in model[:2]:
            parallelize_module(block, init_device_mesh(device.type, (WORLD,)), plan)
        results.append(train(model, device, rank=0, mixed=True))
    same(results[1], results[0])
    if not torch_musa.mccl.counters():
        raise AssertionError("tensor parallel on musa used no mccl")
    torch_musa.mccl.reset_counters()


def device_rng_of_dtensors() -> None:
    """Ranks draw different shards and one whole: DTensor's RNG tracker works on the device's generator."""
    mesh = init_device_mesh("musa", (WORLD,))
    torch.musa.manual_seed(3)
    shards = torch.distributed.tensor.randn(
        8, 4, device_mesh=mesh, placements=[torch.distributed.tensor.Shard(0)]
    )
    whole = shards.full_tensor().cpu()
    if torch.equal(whole[:4], whole[4:]):
        raise AssertionError("both ranks drew the same shard")
    everyone: list[Any] = [None] * WORLD
    dist.all_gather_object(everyone, whole)
    if not torch.equal(everyone[0], everyone[1]):
        raise AssertionError("the ranks disagree on the whole tensor")


def checkpoint() -> None:
    """A checkpoint saved from musa loads into a fresh model on musa, and into one on cpu."""
    model = sharded(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(batch(0, RANK, DEVICE)).square().mean().backward()
    optimizer.step()
    saved, saved_optimizer = dcp_state.get_state_dict(model, optimizer)
    dcp.save({"model": saved, "optimizer": saved_optimizer}, checkpoint_id=str(FOLDER / "checkpoint"))
    whole = {name: full(p) for name, p in model.named_parameters()}
    for device in DEVICES:
        fresh = sharded(device)
        with torch.no_grad():
            for parameter in fresh.parameters():
                parameter.zero_()
        fresh_optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.05)
        into, into_optimizer = dcp_state.get_state_dict(fresh, fresh_optimizer)
        state = {"model": into, "optimizer": into_optimizer}
        dcp.load(state, checkpoint_id=str(FOLDER / "checkpoint"))
        dcp_state.set_state_dict(
            fresh, fresh_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        torch.testing.assert_close({n: full(p) for n, p in fresh.named_parameters()}, whole, rtol=0, atol=0)
        moments = [copy.deepcopy(s["exp_avg"]) for s in fresh_optimizer.state.values()]
        if not moments or all(full(m).abs().sum() == 0 for m in moments):
            raise AssertionError("the optimizer's state did not come back")
        if any(m.device.type != device.type for m in moments):
            raise AssertionError(f"optimizer state is not on {device}")


CHECKS: tuple[Callable[[], None], ...] = (
    ddp,
    fsdp2,
    fsdp2_bfloat16,
    fsdp1,
    tensor_parallel,
    device_rng_of_dtensors,
    checkpoint,
)


def main() -> None:
    """All checks in one process group."""
    warnings.simplefilter("ignore", FutureWarning)
    checks = sim_harness.Checks()
    torch.musa.set_device(RANK)
    store = dist.FileStore(sim_harness.store_path("main"), WORLD)
    dist.init_process_group(
        "cpu:gloo,musa:mccl", store=store, rank=RANK, world_size=WORLD, timeout=dt.timedelta(seconds=60)
    )
    for one in CHECKS:
        torch_musa.mccl.reset_counters()
        with checks.check(one.__name__):
            one()
    checks.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
