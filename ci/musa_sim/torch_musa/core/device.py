"""Devices: count, current one, properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_musa import _C

__all__ = [
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "set_device",
    "synchronize",
    "utilization",
]

DEVICE_NAME = "MTT S5000 (simulated)"
CAPABILITY = (3, 1)  # mp_31, as musa_facts of the project records for the S5000
MULTIPROCESSORS = 1  # what runs here is a CPU; the real count is not public


@dataclass(frozen=True)
class _MusaDeviceProperties:
    """As in torch_musa 2.7.1, there is no ``uuid``: code that needs one must cope with its absence."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def index_of(device: Any, *, optional: bool = True) -> int:
    """The ordinal that ``device`` (None, int, str, torch.device) names; None and no index mean the current one.

    Raises:
        ValueError: a device of another type, or None where it is not allowed.
    """
    if device is None:
        if not optional:
            raise ValueError("a musa device is needed, got None")
        return int(_C.current_device())
    if isinstance(device, int):
        return int(_C.current_device()) if device < 0 else device
    parsed = torch.device(device)
    if parsed.type != "musa":
        raise ValueError(f"Expected a musa device, but got: {parsed}")
    return int(_C.current_device()) if parsed.index is None else parsed.index


def device_count() -> int:
    """Devices that this process sees: MUSA_SIM_DEVICES (default 8), narrowed by MUSA_VISIBLE_DEVICES."""
    return 0 if _C.is_in_bad_fork() else int(_C.device_count())


def is_available() -> bool:
    """Whether there is a device. Does not initialise the runtime."""
    return device_count() > 0


def _is_compiled() -> bool:
    return True


def current_device() -> int:
    """Ordinal of the calling thread's device; initialises the runtime."""
    _C.ensure_initialized()
    return int(_C.current_device())


def set_device(device: Any) -> None:
    """Makes ``device`` current for the calling thread. Negative ordinals are ignored, as torch.cuda does.

    Raises:
        RuntimeError: there is no such device.
    """
    if isinstance(device, int) and device < 0:
        return
    _C.set_device(index_of(device, optional=False))


def _exchange_device(index: int) -> int:
    return int(_C.exchange_device(index))


def _maybe_exchange_device(index: int) -> int:
    return int(_C.exchange_device(index))


class device:  # noqa: N801 (the name torch.cuda has)
    """Context manager: makes ``device`` current inside."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_exc: object) -> None:
        _C.set_device(self.prev_idx)


class device_of(device):  # noqa: N801 (the name torch.cuda has)
    """Context manager: makes the device of a tensor or storage current, if it is on musa."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "musa" else None)


def get_device_properties(device: Any = None) -> _MusaDeviceProperties:
    """Name, capability and memory (bytes; MUSA_SIM_MEMORY_MIB, default 8192 MiB) of a device."""
    index = index_of(device)
    _C.check_ordinal(index)
    return _MusaDeviceProperties(
        name=DEVICE_NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=int(_C.memory_stats(index)["total"]),
        multi_processor_count=MULTIPROCESSORS,
    )


def get_device_name(device: Any = None) -> str:
    """Marketing name, marked as simulated."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(major, minor): (3, 1), the S5000's."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_arch_list() -> list[str]:
    """Architectures the 'driver' knows."""
    return ["mp_31"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that torch.autocast("musa") accepts."""
    return [torch.float16, torch.bfloat16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001
    """Always true, as on the S5000."""
    return True


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether two devices can read each other: they share host memory, so any two different ones can."""
    first, second = index_of(device), index_of(peer_device)
    _C.check_ordinal(first)
    _C.check_ordinal(second)
    return first != second


def synchronize(device: Any = None) -> None:
    """Waits for the device's work, which is always done. Raises on a bad ordinal."""
    _C.ensure_initialized()
    _C.check_ordinal(index_of(device))


def ipc_collect() -> None:
    """Frees memory that other processes released; the simulator holds none back."""
    _C.ensure_initialized()


def utilization(device: Any = None) -> int:
    """Per cent of time a kernel ran. Kernels run on the CPU, so the device itself is idle: 0."""
    _C.check_ordinal(index_of(device))
    return 0
