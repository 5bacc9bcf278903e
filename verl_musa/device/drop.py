"""The test switch that drops weight syncs: shows that a stale rollout server is seen in rollout_probs_diff."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterable, Iterable

import torch
from verl.plugin.platform import get_platform
from verl.workers.rollout.utils import ensure_async_iterator

logger = logging.getLogger(__name__)

DROP_SYNC_ENV = "VERL_MUSA_TEST_DROP_WEIGHT_SYNC"


def drop_asked() -> bool:
    """Whether the switch is set; refused outside the simulator.

    Raises:
        RuntimeError: the switch is set on a real device.
    """
    if os.environ.get(DROP_SYNC_ENV) != "1":
        return False
    if not getattr(get_platform(), "simulated", False):
        raise RuntimeError(f"{DROP_SYNC_ENV}=1 is a test switch of the simulator: unset it on a real device")
    return True


async def drop(
    weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]], number: int
) -> None:
    """Take all weights of sync ``number`` and send none."""
    logger.error("%s=1: weight sync %d is DROPPED, the server keeps old weights", DROP_SYNC_ENV, number)
    # Every rank must still walk it: gathering a sharded weight is a collective, and a sender of another pool waits.
    async for _ in ensure_async_iterator(weights):
        pass
