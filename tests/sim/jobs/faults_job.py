"""Collectives that hang or fail on purpose, on each rank of a two-rank job."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import sim_harness
import torch
import torch.distributed as dist
import torch_musa
from sim_harness import RANK, WORLD

SHORT = dt.timedelta(seconds=2)
DEVICE = torch.device("musa", RANK)


def fails(call: Any, *texts: str) -> float:
    """Seconds until ``call`` raised DistBackendError; raises unless each text is in its message."""
    start = time.monotonic()
    try:
        call()
    except dist.DistBackendError as error:
        for text in texts:
            if text not in str(error):
                raise AssertionError(f"expected {text!r} in: {error}") from error
        return time.monotonic() - start
    raise AssertionError("expected DistBackendError, and nothing was raised")


def within(seconds: float, least: float, most: float) -> None:
    if not least <= seconds <= most:
        raise AssertionError(f"expected {least} to {most} s, took {seconds:.1f} s")


def from_environment() -> None:
    """MUSA_SIM_FAULTS=error:op=broadcast,at=2, set by the test."""
    x = torch.ones(2, device=DEVICE)
    dist.broadcast(x, 0)
    fails(lambda: dist.broadcast(x, 0), "mccl: broadcast", "MUSA_SIM_FAULTS")
    torch_musa.faults.clear()


def error_once() -> None:
    x = torch.ones(2, device=DEVICE)
    torch_musa.faults.error("all_reduce", at=2)
    dist.all_reduce(x)
    fails(lambda: dist.all_reduce(x), "mccl: all_reduce", f"rank {RANK} of 2", "injected")
    dist.all_reduce(x)
    if x.tolist() != [4.0, 4.0]:
        raise AssertionError(f"expected two sums of ones, found {x}")


def hang_until_timeout() -> None:
    """Rank 1 hangs: it fails after its timeout, and so does rank 0, whose peer never came."""
    group = dist.new_group(list(range(WORLD)), timeout=SHORT)
    torch_musa.faults.hang("all_reduce", rank=1)
    x = torch.ones(2, device=DEVICE)
    seconds = fails(lambda: dist.all_reduce(x, group=group), "all_reduce", "2000 ms", "2 elements of Float")
    within(seconds, 1.5, 20)
    if RANK == 1 and torch_musa.faults.active()[0]["fired"] != 1:
        raise AssertionError("the fault did not fire on rank 1")
    torch_musa.faults.clear()


def peer_absent() -> None:
    """No fault at all: a group's timeout holds for a collective that the peer does not call."""
    group = dist.new_group(list(range(WORLD)), timeout=SHORT)
    if RANK == 0:
        x = torch.ones(2, device=DEVICE)
        within(fails(lambda: dist.all_gather([x, x], x, group=group), "all_gather", "2000 ms"), 1.5, 20)


def wait_with_a_limit() -> None:
    group = dist.new_group(list(range(WORLD)))
    torch_musa.faults.hang("all_reduce")
    work = dist.all_reduce(torch.ones(2, device=DEVICE), group=group, async_op=True)
    limit = dt.timedelta(milliseconds=300)
    within(fails(lambda: work.wait(limit), "300 ms given to wait()"), 0.2, 10)
    if work.is_completed():
        raise AssertionError("the work hangs and calls itself complete")


def main() -> None:
    """All checks."""
    checks = sim_harness.Checks()
    torch.musa.set_device(RANK)
    store = dist.FileStore(sim_harness.store_path("main"), WORLD)
    dist.init_process_group("mccl", store=store, rank=RANK, world_size=WORLD)
    for one in (from_environment, error_once, hang_until_timeout, peer_absent, wait_with_a_limit):
        with checks.check(one.__name__):
            one()
    checks.write()


if __name__ == "__main__":
    main()
