"""Random state: per device, 16 bytes (seed, offset), apart from the CPU's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_musa import _C
from torch_musa.core.device import index_of

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: Any) -> torch.Generator:
    generator: torch.Generator = _C.default_generator(index_of(device))
    return generator


def get_rng_state(device: Any = "musa") -> torch.Tensor:
    """The device's random state: a CPU uint8 tensor of 16 elements."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The random states of all devices, in order."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "musa") -> None:
    """Sets the device's random state (CPU uint8, 16 elements). Raises TypeError or RuntimeError on another shape."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the random states of devices 0, 1, ... in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds all devices."""
    for index in range(_C.device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device from the system's entropy."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds all devices from the system's entropy, each with the same number."""
    value = _generator(0).seed()
    manual_seed_all(value)


def initial_seed() -> int:
    """The current device's seed."""
    return _generator(None).initial_seed()
