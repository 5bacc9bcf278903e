"""Tensors that go from one process to another: torch.multiprocessing queues and the handles that verl sends."""

from __future__ import annotations

import pickle
from typing import Any

import sim_harness
import torch
import torch.multiprocessing as mp
import torch_musa  # noqa: F401  (makes the device)
from torch.multiprocessing.reductions import reduce_tensor

WAIT_S = 120


def child(inbox: Any, outbox: Any) -> None:
    """Adds 10 to what arrives, in place, and answers with what it saw."""
    for _ in range(3):
        item = inbox.get(timeout=WAIT_S)
        if isinstance(item, bytes):
            function, args = pickle.loads(item)  # noqa: S301  (the parent's own bytes)
            item = function(*args)
        outbox.put((str(item.device), item.tolist(), type(item).__name__, torch.musa.memory_allocated()))
        with torch.no_grad():
            item += 10
        outbox.put("written")
        inbox.get(timeout=WAIT_S)
        del item


def expect(found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")


def main() -> None:
    checks = sim_harness.Checks()
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(inbox, outbox), daemon=True)
    process.start()

    def exchange(sent: Any, tensor: Any, kind: str) -> None:
        values = tensor.tolist()
        inbox.put(sent)
        device, seen, name, counted = outbox.get(timeout=WAIT_S)
        expect((device, seen, name), ("musa:1", values, kind))
        expect(counted, 0)  # the bytes are the sender's
        outbox.get(timeout=WAIT_S)
        expect(tensor.tolist(), (torch.tensor(values) + 10).tolist())
        inbox.put("go on")

    whole = torch.arange(12.0, device="musa:1").reshape(3, 4)
    held = torch.musa.memory_allocated(1)
    with checks.check("a view through a queue"):
        exchange(whole[:, 1], whole[:, 1], "Tensor")
        expect(whole[:, 0].tolist(), [0.0, 4.0, 8.0])
        expect(torch.musa.memory_allocated(1), held)
    with checks.check("a parameter through a queue"):
        parameter = torch.nn.Parameter(torch.ones(3, device="musa:1"))
        exchange(parameter, parameter, "Parameter")
    with checks.check("a handle through plain pickle"):
        function, args = reduce_tensor(whole)
        expect(args[6], 1)  # where CUDA's form has the device, which callers rewrite
        exchange(pickle.dumps((function, args)), whole, "Tensor")
    with checks.check("the device of a handle can be rewritten"):
        function, args = reduce_tensor(whole)
        expect(function(*args[:6], 0, *args[7:]).device, torch.device("musa:0"))
    with checks.check("a shared tensor still works"):
        whole += 1
        expect(torch.equal(whole.cpu() * 2, (whole * 2).cpu()), True)
        whole.resize_(5, 4).zero_()
        expect(whole.sum().item(), 0.0)
    with checks.check("a result that needs history is refused"):
        leaf = torch.ones(2, device="musa", requires_grad=True)
        try:
            reduce_tensor(leaf * 2)
        except RuntimeError as error:
            expect("non-leaf" in str(error), True)
        else:
            raise AssertionError("expected RuntimeError")
    with checks.check("CPU tensors keep torch's own way"):
        function, _ = reduce_tensor(torch.ones(2))
        expect(function.__module__, "torch.multiprocessing.reductions")
    process.join(WAIT_S)
    with checks.check("the child ended well"):
        expect(process.exitcode, 0)
    checks.write()


if __name__ == "__main__":
    main()
