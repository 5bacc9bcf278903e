"""Where the servers of a rollout pool of its own compute: on the devices of their workers, not from device 0 on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from verl_musa.device import proof


async def base_device(workers: Iterable[Any]) -> int:
    """Ask a server's workers on this host for their devices, and return the first device's index.

    verl counts from 0 on each host, which is right where the rollout has whole hosts. With a pool beside the trainer's
    and every device visible, device 0 is the trainer's.

    Raises:
        RuntimeError: the devices do not lie side by side.
    """
    return first_device(await asyncio.gather(*map(_devices_of, workers)))


async def _devices_of(worker: Any) -> list[str]:
    found = await worker.__ray_call__.remote(lambda _worker: proof.accelerators())
    return [str(device) for device in found]


def first_device(devices: Sequence[Sequence[str]]) -> int:
    """Index of the first of a server's devices.

    Args:
        devices: those that Ray gave to each of the server's workers on this host.

    Raises:
        RuntimeError: they do not lie side by side: SGLang counts on from the first.
    """
    numbers = sorted(int(device) for each in devices for device in each)
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise RuntimeError(
            f"devices of one server of the rollout's pool: found {numbers}; expected neighbours, which SGLang counts through "
            "from the first one: give the pool whole hosts, or sizes that Ray can place side by side"
        )
    return numbers[0]
