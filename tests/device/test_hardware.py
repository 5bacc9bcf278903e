"""What only a real Moore Threads GPU can show. Everywhere else these tests skip and say so; none of it is claimed."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.musa

TWO = 2


def _reduce(rank: int, rendezvous: str, results: str) -> None:
    import torch_musa  # noqa: F401

    torch.musa.set_device(rank)
    torch.distributed.init_process_group("mccl", init_method=rendezvous, rank=rank, world_size=TWO)
    value = torch.full((1 << 20,), float(rank + 1), device=f"musa:{rank}")
    torch.distributed.all_reduce(value)
    torch.musa.synchronize()
    Path(results, str(rank)).write_text(str(float(value.min())))
    torch.distributed.destroy_process_group()


def _read(queue: multiprocessing.Queue[torch.Tensor], results: str) -> None:
    import torch_musa  # noqa: F401

    Path(results, "seen").write_text(str(float(queue.get(timeout=120).sum())))


def test_the_device_is_a_real_one() -> None:
    import torch_musa

    assert not getattr(torch_musa, "__simulator__", False)
    assert "MTT" in torch.musa.get_device_name(0)
    assert torch.musa.get_device_capability(0) >= (3, 1)


def test_mccl_reduces_over_two_devices(tmp_path: Path) -> None:
    if torch.musa.device_count() < TWO:
        pytest.skip("needs two devices")
    rendezvous = f"file://{tmp_path / 'rendezvous'}"
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_reduce, args=(rank, rendezvous, str(tmp_path))) for rank in range(TWO)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(300)
    assert [(tmp_path / str(rank)).read_text() for rank in range(TWO)] == ["3.0", "3.0"]


def test_a_device_tensor_is_shared_between_processes(tmp_path: Path) -> None:
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    reader = context.Process(target=_read, args=(queue, str(tmp_path)))
    reader.start()
    value = torch.ones(1 << 20, device="musa")
    queue.put(value)
    reader.join(300)
    assert (tmp_path / "seen").read_text() == str(float(1 << 20))


def test_checkpointing_restores_the_device_rng() -> None:
    """By its source torch_musa 2.7.1 hides that it is initialised, and recomputation then draws another mask."""
    layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).to("musa")
    x = torch.randn(32, 64, device="musa", requires_grad=True)
    torch.musa.manual_seed(1)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    recomputed, x.grad = x.grad, None
    torch.musa.manual_seed(1)
    layer(x).sum().backward()
    assert torch.equal(recomputed, x.grad)


def test_padding_of_jagged_tensors_equals_the_cpu() -> None:
    from verl_musa.device import jagged

    jagged.register()
    rows = [torch.randn(length) for length in (3, 1, 5)]
    wanted = torch.nested.as_nested_tensor(rows, layout=torch.jagged).to_padded_tensor(0)
    nested = torch.nested.as_nested_tensor([row.to("musa") for row in rows], layout=torch.jagged)
    assert torch.equal(nested.to_padded_tensor(0).cpu(), wanted)


def test_memory_that_a_kernel_still_reads_is_not_given_away() -> None:
    """verl's recomputation in Megatron records the stream and then frees the storage, while kernels may be running."""
    torch.musa.set_device(0)
    side = torch.musa.Stream()
    value = torch.ones(4096, 4096, device="musa")
    torch.musa.synchronize()
    with torch.musa.stream(side):
        result = value
        for _ in range(50):
            result = torch.mm(result, value) / 4096
    value.record_stream(side)
    value.untyped_storage().resize_(0)
    other = torch.zeros(4096, 4096, device="musa")
    torch.musa.synchronize()
    assert float(result.sum()) == 4096 * 4096
    assert float(other.sum()) == 0


def test_names_of_tensor_types() -> None:
    """The patch megatron-typed-tensor-names relies on them."""
    for dtype, name in ((torch.float32, "Float"), (torch.float16, "Half"), (torch.bfloat16, "BFloat16")):
        assert torch.ones(1, device="musa", dtype=dtype).type() == f"torch.musa.{name}Tensor"
