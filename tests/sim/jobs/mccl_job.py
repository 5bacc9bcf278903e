"""Every collective of ``mccl`` on each rank of a two-rank job, checked against values worked out by hand."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from typing import Any

import sim_harness
import torch
import torch.distributed as dist
import torch_musa
from sim_harness import RANK, WORLD

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
)
OPS: dict[str, Callable[[Any], Any]] = {
    "SUM": lambda stack: stack.sum(0),
    "PRODUCT": lambda stack: stack.prod(0),
    "MIN": lambda stack: stack.amin(0),
    "MAX": lambda stack: stack.amax(0),
}
TIMEOUT = dt.timedelta(seconds=60)
DEVICE = torch.device("musa", RANK)


def own(dtype: Any, rank: int, rows: int = 4) -> Any:
    """The cpu tensor [rows, 3] that ``rank`` brings."""
    values = (torch.arange(rows * 3).reshape(rows, 3) + 5 * rank) % 7
    return values.gt(2) if dtype is torch.bool else values.to(dtype)


def same(found: Any, expected: Any) -> None:
    """Raises unless a musa tensor has exactly the expected cpu values and dtype."""
    if found.device != DEVICE:
        raise AssertionError(f"expected a result on {DEVICE}, found it on {found.device}")
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def reductions(dtype: Any) -> dict[str, Any]:
    """Expected results of reducing ``own`` over all ranks, by ReduceOp name."""
    stack = torch.stack([own(dtype, r) for r in range(WORLD)])
    expected = {name: op(stack).to(dtype) for name, op in OPS.items() if dtype is not torch.bool}
    if dtype is torch.bool:
        return {"SUM": stack.any(0), "PRODUCT": stack.all(0), "MIN": stack.all(0), "MAX": stack.any(0)}
    mean = expected["SUM"] / WORLD
    expected["AVG"] = mean if dtype.is_floating_point else mean.trunc().to(dtype)
    return expected


def reduce_ops(dtype: Any) -> None:
    for name, expected in reductions(dtype).items():
        op = getattr(dist.ReduceOp, name)
        x = own(dtype, RANK).to(DEVICE)
        dist.all_reduce(x, op=op)
        same(x, expected)
        x = own(dtype, RANK).to(DEVICE)
        dist.reduce(x, dst=1, op=op)
        same(x, expected if RANK == 1 else own(dtype, RANK))
        half = own(dtype, 0).shape[0] // WORLD
        mine = expected[RANK * half : (RANK + 1) * half]
        out = torch.empty_like(mine, device=DEVICE)
        dist.reduce_scatter_tensor(out, own(dtype, RANK).to(DEVICE), op=op)
        same(out, mine)
        out.zero_()
        dist.reduce_scatter(out, list(own(dtype, RANK).to(DEVICE).chunk(WORLD)), op=op)
        same(out, mine)


def gathers(dtype: Any) -> None:
    everyone = [own(dtype, r) for r in range(WORLD)]
    for src in range(WORLD):
        x = own(dtype, RANK).to(DEVICE)
        dist.broadcast(x, src=src)
        same(x, everyone[src])
    outs = [torch.empty_like(e, device=DEVICE) for e in everyone]
    dist.all_gather(outs, own(dtype, RANK).to(DEVICE))
    for out, expected in zip(outs, everyone, strict=True):
        same(out, expected)
    whole = torch.empty_like(torch.cat(everyone), device=DEVICE)
    dist.all_gather_into_tensor(whole, own(dtype, RANK).to(DEVICE))
    same(whole, torch.cat(everyone))
    outs = [torch.empty_like(e, device=DEVICE) for e in everyone]
    dist.gather(own(dtype, RANK).to(DEVICE), outs if RANK == 0 else None, dst=0)
    if RANK == 0:
        for out, expected in zip(outs, everyone, strict=True):
            same(out, expected)
    out = torch.empty_like(everyone[0], device=DEVICE)
    dist.scatter(out, [e.to(DEVICE) for e in everyone] if RANK == 1 else None, src=1)
    same(out, everyone[RANK])


def uneven_gather() -> None:
    outs = [torch.zeros(r + 1, device=DEVICE) for r in range(WORLD)]
    dist.all_gather(outs, torch.full((RANK + 1,), float(RANK + 1), device=DEVICE))
    for r, out in enumerate(outs):
        same(out, torch.full((r + 1,), float(r + 1)))


def exchanges(dtype: Any) -> None:
    everyone = [own(dtype, r) for r in range(WORLD)]
    out = torch.empty_like(everyone[0], device=DEVICE)
    dist.all_to_all_single(out, everyone[RANK].to(DEVICE))
    same(out, torch.cat([e.chunk(WORLD)[RANK] for e in everyone]))
    # Rank 0 keeps 1 row and sends 3; rank 1 sends 3 and keeps 1.
    sent = [[1, 3], [3, 1]]
    taken = [sent[r][RANK] for r in range(WORLD)]
    out = torch.empty_like(own(dtype, 0, sum(taken)), device=DEVICE)
    dist.all_to_all_single(out, everyone[RANK].to(DEVICE), taken, sent[RANK])
    parts = [e.split(sent[r])[RANK] for r, e in enumerate(everyone)]
    same(out, torch.cat(parts))
    outs = [torch.empty_like(p, device=DEVICE) for p in parts]
    dist.all_to_all(outs, list(everyone[RANK].to(DEVICE).split(sent[RANK])))
    for o, p in zip(outs, parts, strict=True):
        same(o, p)
    peer = 1 - RANK
    x = torch.empty_like(everyone[0], device=DEVICE)
    work = dist.isend(everyone[RANK].to(DEVICE), peer, tag=RANK)  # tags are ignored, as on the device
    dist.recv(x, peer, tag=7)
    work.wait()
    same(x, everyone[peer])
    x.zero_()
    ops = [dist.P2POp(dist.isend, everyone[RANK].to(DEVICE), peer), dist.P2POp(dist.irecv, x, peer)]
    for one in dist.batch_isend_irecv(ops):
        one.wait()
    same(x, everyone[peer])


def shapes() -> None:
    x = torch.arange(6.0, device=DEVICE).reshape(2, 3).t()  # dense, though not contiguous
    dist.all_reduce(x)
    same(x, 2 * torch.arange(6.0).reshape(2, 3).t())
    view = torch.zeros(10, device=DEVICE)
    dist.all_reduce(view[4:6].fill_(RANK + 1.0))  # a view with an offset: only it changes
    same(view, torch.tensor([0.0] * 4 + [3.0] * 2 + [0.0] * 4))
    scalar = torch.tensor(float(RANK), device=DEVICE)
    dist.all_reduce(scalar)
    same(scalar, torch.tensor(1.0))
    for empty in (torch.zeros(0, device=DEVICE), torch.zeros(0, 4, device=DEVICE)):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        dist.all_gather_into_tensor(torch.zeros_like(empty), empty)
        dist.all_to_all_single(torch.zeros_like(empty), empty)
    grown = torch.ones(3, device=DEVICE, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(grown)
    same(grown.detach(), torch.full((3,), 2.0))
    z = torch.tensor([1 + 2j, 3 - 1j], device=DEVICE)
    dist.all_reduce(z)
    same(z, torch.tensor([2 + 4j, 6 - 2j]))


def coalescing() -> None:
    xs = [torch.full((n,), float(RANK + n), device=DEVICE) for n in (1, 2, 3)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
    for n, x in zip((1, 2, 3), xs, strict=True):
        same(x, torch.full((n,), n + 0.5))
    outs = [torch.empty(2 * n, device=DEVICE) for n in (1, 2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for n, out in zip((1, 2), outs, strict=True):
            dist.all_gather_into_tensor(out, torch.full((n,), float(RANK), device=DEVICE))
    manager.wait()
    same(outs[1], torch.tensor([0.0, 0.0, 1.0, 1.0]))
    outs = [torch.empty(n, device=DEVICE) for n in (1, 2)]
    with dist._coalescing_manager():
        for n, out in zip((1, 2), outs, strict=True):
            dist.reduce_scatter_tensor(out, torch.arange(2.0 * n, device=DEVICE))
    same(outs[1], 2 * torch.arange(4.0)[2 * RANK : 2 * RANK + 2])
    x = torch.ones(2, device=DEVICE)
    with dist._coalescing_manager(device=DEVICE, async_ops=True) as manager:
        dist.broadcast(x, 0)
    manager.wait()


def asynchronous() -> None:
    x = torch.full((4,), RANK + 1.0, device=DEVICE)
    work = dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), torch.full((4,), 3.0))
    if not (work.wait() and work.is_completed() and work.is_success()):
        raise AssertionError("the work was waited for and is not complete")
    same(x, torch.full((4,), 1.5))
    functional = torch.distributed._functional_collectives.all_reduce(x, "sum", dist.group.WORLD)
    same(functional.wait(), torch.full((4,), 3.0))
    scaled = torch.full((2,), 1.0 + RANK, device=DEVICE)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    same(scaled, torch.full((2,), 1.5))


def objects() -> None:
    found: list[Any] = [None] * WORLD
    dist.all_gather_object(found, {"rank": RANK})
    if found != [{"rank": r} for r in range(WORLD)]:
        raise AssertionError(f"all_gather_object gave {found}")
    box = [f"from {RANK}"]
    dist.broadcast_object_list(box, src=1)
    if box != ["from 1"]:
        raise AssertionError(f"broadcast_object_list gave {box}")
    dist.barrier()


def raises(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    """Raises unless ``call`` raises ``kind`` with ``text`` in its message."""
    try:
        call()
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"expected {text!r} in the message, found: {error}") from error
        return
    raise AssertionError(f"expected {kind.__name__}, and nothing was raised")


def refusals() -> None:
    x = torch.ones(4, device=DEVICE)
    raises(TypeError, "not supported for MCCL", lambda: dist.all_reduce(x.to(torch.int16)))
    raises(TypeError, "not supported for MCCL", lambda: dist.broadcast(x.to(torch.int16), 0))
    raises(TypeError, "float8", lambda: dist.all_reduce(x.to(torch.float8_e4m3fn)))
    raises(ValueError, "bitwise", lambda: dist.all_reduce(x.int(), op=dist.ReduceOp.BAND))
    raises(TypeError, "AVG with Boolean", lambda: dist.all_reduce(x.bool(), op=dist.ReduceOp.AVG))
    raises(ValueError, "must be contiguous", lambda: dist.all_reduce(x[::2]))
    raises(RuntimeError, "device type cpu", lambda: dist.all_reduce(torch.ones(2)))
    raises(ValueError, "2 times the elements", lambda: dist.all_gather_into_tensor(x, x))
    raises(ValueError, "do not share out", lambda: dist.all_to_all_single(x, x, [1, 1], [1, 1]))
    y = x.to(torch.float8_e4m3fn)  # moving float8 is fine
    dist.broadcast(y, 0)


def counted() -> None:
    torch_musa.mccl.reset_counters()
    x = torch.ones(8, device=DEVICE)
    dist.all_reduce(x)
    dist.all_reduce(x[:4])
    dist.barrier()
    dist.all_gather_into_tensor(torch.empty(16, device=DEVICE), x)
    expected = {
        "all_reduce": {"calls": 2, "bytes": 48},
        "barrier": {"calls": 1, "bytes": 0},
        "all_gather_into_tensor": {"calls": 1, "bytes": 32},
    }
    if torch_musa.mccl.counters() != expected:
        raise AssertionError(f"expected {expected}, found {torch_musa.mccl.counters()}")
    if not set(torch_musa.mccl.counters()) <= set(torch_musa.mccl.OPS):
        raise AssertionError("a counter is not among OPS")


def groups() -> None:
    solo = [dist.new_group([r], backend="mccl") for r in range(WORLD)][RANK]
    x = torch.full((3,), 4.0, device=DEVICE)
    dist.all_reduce(x, op=dist.ReduceOp.AVG, group=solo)
    dist.reduce_scatter_tensor(torch.empty(3, device=DEVICE), x, group=solo)
    dist.all_to_all_single(torch.empty(3, device=DEVICE), x, group=solo)
    same(x, torch.full((3,), 4.0))
    pair = dist.new_group(list(range(WORLD)))
    dist.all_reduce(x, group=pair)
    same(x, torch.full((3,), 8.0))
    if dist.get_backend(pair) != "mccl":
        raise AssertionError(f"expected backend mccl, found {dist.get_backend(pair)}")
    if RANK == 0 and len(dist.get_process_group_ranks(solo)) != 1:
        raise AssertionError("the group of one rank has more")


def two_backends() -> None:
    """cpu:gloo and musa:mccl in one group bound to a device, with a group split from it."""
    store = dist.FileStore(sim_harness.store_path("both"), WORLD)
    dist.init_process_group(
        "cpu:gloo,musa:mccl", store=store, rank=RANK, world_size=WORLD, timeout=TIMEOUT, device_id=DEVICE
    )
    on_cpu, on_musa = torch.ones(2), torch.ones(2, device=DEVICE)
    dist.all_reduce(on_cpu)
    dist.all_reduce(on_musa)
    same(on_musa, on_cpu)
    part = dist.split_group(split_ranks=[[r] for r in range(WORLD)])
    dist.all_reduce(on_musa, group=part)
    same(on_musa, on_cpu)
    whole = dist.split_group(split_ranks=[list(range(WORLD))])
    dist.all_reduce(on_musa, group=whole)
    same(on_musa, on_cpu * 2)
    dist.new_group([0])  # the other rank takes no part in it
    dist.destroy_process_group()


def default_backend() -> None:
    """A device mesh without a group yet: musa's default backend is mccl."""
    store = dist.FileStore(sim_harness.store_path("mesh"), WORLD)
    dist.init_process_group(store=store, rank=RANK, world_size=WORLD, timeout=TIMEOUT)
    mesh = dist.device_mesh.init_device_mesh("musa", (1, WORLD), mesh_dim_names=("dp", "tp"))
    x = torch.ones(2, device=DEVICE)
    dist.all_reduce(x, group=mesh["tp"].get_group())
    same(x, torch.full((2,), 2.0))
    kind = type(dist.distributed_c10d._get_default_group()._get_backend(DEVICE)).__name__
    if kind != "ProcessGroupMCCL":
        raise AssertionError(f"expected the backend ProcessGroupMCCL, found {kind}")
    dist.destroy_process_group()


def main() -> None:
    """All checks, in one process group and two more."""
    warnings.simplefilter("ignore", FutureWarning)  # torch renames its collectives; both names are in use
    checks = sim_harness.Checks()
    torch.musa.set_device(RANK)
    # First: torch 2.13's ProcessGroupGloo::split crashes unless its group is the first gloo group of the process.
    with checks.check("two_backends"):
        two_backends()
    store = dist.FileStore(sim_harness.store_path("main"), WORLD)
    dist.init_process_group("mccl", store=store, rank=RANK, world_size=WORLD, timeout=TIMEOUT)
    for dtype in DTYPES:
        for family in (reduce_ops, gathers, exchanges):
            with checks.check(f"{family.__name__}[{dtype}]"):
                family(dtype)
    for one in (uneven_gather, shapes, coalescing, asynchronous, objects, refusals, counted, groups):
        with checks.check(one.__name__):
            one()
    dist.destroy_process_group()
    with checks.check("default_backend"):
        default_backend()
    checks.write()


if __name__ == "__main__":
    main()
