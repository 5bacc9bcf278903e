"""Memory statistics and the limit per device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch
import torch_musa

MIB = 1024 * 1024
DEVICE = 1  # other tests use device 0


@pytest.fixture
def base() -> Iterator[int]:
    """Bytes allocated on the device before the test; the limit is lifted after it."""
    gc.collect()
    torch.musa.reset_peak_memory_stats(DEVICE)
    yield torch.musa.memory_allocated(DEVICE)
    torch.musa.set_per_process_memory_fraction(1.0, DEVICE)


def test_statistics_follow_allocations(base: int) -> None:
    x = torch.empty(MIB, dtype=torch.float32, device=f"musa:{DEVICE}")
    small = torch.empty(1, device=f"musa:{DEVICE}")
    assert torch.musa.memory_allocated(DEVICE) - base == 4 * MIB + 512
    assert torch.musa.memory_reserved(DEVICE) == torch.musa.memory_allocated(DEVICE)
    view = x[1:]
    del x
    assert torch.musa.memory_allocated(DEVICE) - base == 4 * MIB + 512
    del view, small
    assert torch.musa.memory_allocated(DEVICE) == base
    assert torch.musa.max_memory_allocated(DEVICE) - base == 4 * MIB + 512
    torch.musa.reset_peak_memory_stats(DEVICE)
    assert torch.musa.max_memory_allocated(DEVICE) == base
    free, total = torch.musa.mem_get_info(DEVICE)
    assert total - free == base


def test_results_of_kernels_and_moved_tensors_count(base: int) -> None:
    x = torch.ones(MIB).to(f"musa:{DEVICE}")
    y = x * 2
    assert torch.musa.memory_allocated(DEVICE) - base == 8 * MIB
    y.untyped_storage().resize_(0)
    assert torch.musa.memory_allocated(DEVICE) - base == 4 * MIB
    y.untyped_storage().resize_(8 * MIB)
    assert torch.musa.memory_allocated(DEVICE) - base == 12 * MIB


def test_temporaries_of_kernels_show_in_the_peak(base: int) -> None:
    x = torch.rand(512, 512, device=f"musa:{DEVICE}")
    now = torch.musa.memory_allocated(DEVICE)
    torch.musa.reset_peak_memory_stats(DEVICE)
    torch.linalg.eigvalsh(x)
    assert torch.musa.memory_allocated(DEVICE) == now
    assert torch.musa.max_memory_allocated(DEVICE) > base + now


def test_memory_stats_have_the_usual_keys(base: int) -> None:
    x = torch.empty(MIB, device=f"musa:{DEVICE}")
    stats = torch.musa.memory_stats(DEVICE)
    assert stats["allocated_bytes.all.current"] - base == x.nbytes
    assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
    assert stats["allocation.all.current"] >= 1
    assert stats["inactive_split_bytes.all.current"] == 0
    assert torch.accelerator.memory_allocated(DEVICE) == torch.musa.memory_allocated(DEVICE)
    table = torch.musa.memory_summary(DEVICE)
    assert f"simulated musa device {DEVICE}" in table
    torch.musa.reset_accumulated_memory_stats(DEVICE)
    assert torch.musa.memory_stats(DEVICE)["num_device_alloc"] == 0


def test_an_allocator_from_a_library_is_refused() -> None:
    """The name is there, because Megatron-Core imports it (torchada calls it CUDAPluggableAllocator)."""
    with pytest.raises(NotImplementedError, match="takes no allocator from a library"):
        torch.musa.memory.MUSAPluggableAllocator("lib.so", "take", "give")


def test_a_memory_pool_is_refused() -> None:
    """The name is there, because SGLang writes it into an annotation (torchada calls it torch.cuda.MemPool)."""
    with pytest.raises(NotImplementedError, match="no memory pools"):
        torch.musa.MemPool()


def test_devices_are_counted_apart(base: int) -> None:
    torch.empty(MIB, device="musa:0")
    assert torch.musa.max_memory_allocated(DEVICE) == base


def test_an_allocation_above_the_limit_raises(base: int) -> None:
    total = torch.musa.mem_get_info(DEVICE)[1]
    torch.musa.set_per_process_memory_fraction((base + 64 * MIB) / total, DEVICE)
    assert torch.musa.get_per_process_memory_fraction(DEVICE) == pytest.approx((base + 64 * MIB) / total)
    held = torch.empty(10 * MIB, device=f"musa:{DEVICE}")  # 40 MiB
    ooms = torch.musa.memory_stats(DEVICE)["num_ooms"]
    calls: tuple[Callable[[], object], ...] = (
        lambda: torch.empty(10 * MIB, device=f"musa:{DEVICE}"),
        lambda: held + 1,  # the result of a kernel
        lambda: torch.ones(10 * MIB).to(f"musa:{DEVICE}"),
        lambda: held.resize_(20 * MIB),
        lambda: torch.add(held, 1, out=torch.empty(0, device=f"musa:{DEVICE}")),
    )
    for call in calls:
        with pytest.raises(torch.OutOfMemoryError, match="MUSA out of memory"):
            call()
    assert torch.musa.memory_stats(DEVICE)["num_ooms"] == ooms + len(calls)
    assert torch.musa.OutOfMemoryError is torch.OutOfMemoryError
    assert torch.musa.memory_allocated(DEVICE) - base == 40 * MIB
    assert held.fill_(1).sum().item() == 10 * MIB, "what was there before stays usable"


def test_more_than_the_host_has_raises_before_the_host_is_asked() -> None:
    with pytest.raises(torch_musa.OutOfMemoryError, match="has a total capacity"):
        torch.empty(1 << 46, dtype=torch.uint8, device="musa")


@pytest.mark.parametrize(("fraction", "error"), [(1.5, ValueError), (-0.1, ValueError), (1, TypeError)])
def test_a_bad_fraction_is_refused(fraction: float, error: type[Exception]) -> None:
    with pytest.raises(error, match="fraction"):
        torch.musa.set_per_process_memory_fraction(fraction, DEVICE)
