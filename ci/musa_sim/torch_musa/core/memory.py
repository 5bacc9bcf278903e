"""Memory: statistics and the limit. Sizes are bytes of this process alone; real devices are shared by processes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch_musa import _C
from torch_musa.core.device import index_of

__all__ = [
    "MUSAPluggableAllocator",
    "MemPool",
    "empty_cache",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

_MIB = 1024 * 1024


class MUSAPluggableAllocator:
    """An allocator from a shared library; Megatron-Core imports the name, and the simulator has no such allocator."""

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            f"the simulated musa device takes no allocator from a library: {path_to_so_file} "
            f"({alloc_fn_name}, {free_fn_name})"
        )


class MemPool:
    """A pool of device memory of its own; SGLang names the type at import, and the simulator has no pools."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            "the simulated musa device has no memory pools: there is no caching allocator"
        )


def _raw(device: Any) -> dict[str, int]:
    stats: dict[str, int] = _C.memory_stats(index_of(device))
    return stats


def empty_cache() -> None:
    """Releases cached memory. The simulator caches none, so reserved always equals allocated."""


def memory_allocated(device: Any = None) -> int:
    """Bytes held by tensors now, in blocks of 512."""
    return _raw(device)["current"]


def max_memory_allocated(device: Any = None) -> int:
    """Peak of memory_allocated since the start or the last reset, kernel temporaries included."""
    return _raw(device)["peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes the allocator holds: the same as memory_allocated."""
    return _raw(device)["current"]


def max_memory_reserved(device: Any = None) -> int:
    """Peak of memory_reserved: the same as max_memory_allocated."""
    return _raw(device)["peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Sets the peaks to what is allocated now."""
    _C.reset_peak_stats(index_of(device))


def reset_max_memory_allocated(device: Any = None) -> None:
    """The older name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sets the counters of all allocations so far to zero."""
    _C.reset_accumulated_stats(index_of(device))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device, as this process sees it."""
    raw = _raw(device)
    return raw["total"] - raw["current"], raw["total"]


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits this process to ``fraction`` (0.0-1.0) of the device's memory.

    An allocation above the limit raises torch.OutOfMemoryError before any host memory is taken.
    """
    if not isinstance(fraction, float):
        raise TypeError(f"Invalid type for fraction argument, must be `float`, got {type(fraction).__name__}")
    _C.set_memory_fraction(fraction, index_of(device))


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The fraction set last; 1.0 at first."""
    raw = _raw(device)
    return raw["limit"] / raw["total"]


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Statistics under the keys of torch.cuda.memory_stats; pools are not told apart, so only ``all`` is filled."""
    raw = _raw(device)
    sizes = {
        "current": raw["current"],
        "peak": raw["peak"],
        "allocated": raw["allocated"],
        "freed": raw["freed"],
    }
    blocks = {
        "current": raw["blocks"],
        "peak": raw["peak_blocks"],
        "allocated": raw["alloc_count"],
        "freed": raw["free_count"],
    }
    out: dict[str, int] = {
        "num_alloc_retries": 0,
        "num_ooms": raw["ooms"],
        "num_device_alloc": raw["alloc_count"],
        "num_device_free": raw["free_count"],
    }
    for metric, values in (
        *((name, sizes) for name in ("active_bytes", "allocated_bytes", "requested_bytes", "reserved_bytes")),
        *((name, blocks) for name in ("active", "allocation", "segment")),
        *((name, dict.fromkeys(sizes, 0)) for name in ("inactive_split", "inactive_split_bytes")),
    ):
        for kind, value in values.items():
            out[f"{metric}.all.{kind}"] = value
    return OrderedDict(sorted(out.items()))


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:  # noqa: ARG001
    """A table for people."""
    index = index_of(device)
    raw = _raw(index)
    rows = (
        ("allocated", raw["current"], raw["peak"]),
        ("free of the limit", raw["limit"] - raw["current"], raw["limit"]),
        ("device total", raw["total"], raw["total"]),
    )
    lines = [f"simulated musa device {index} (this process)", f"{'':<20}{'now MiB':>12}{'peak MiB':>12}"]
    lines += [f"{name:<20}{now / _MIB:>12.1f}{peak / _MIB:>12.1f}" for name, now, peak in rows]
    lines.append(f"{'blocks':<20}{raw['blocks']:>12}{raw['peak_blocks']:>12}")
    lines.append(f"{'out of memory':<20}{raw['ooms']:>12}")
    return "\n".join(lines)
