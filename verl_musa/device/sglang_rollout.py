"""verl's SGLang adapter in the trainer workers, with weights handed over in a way that the device supports."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator
from typing import Any

import torch
from sglang.srt.utils import patch_torch
from verl.plugin.platform import get_platform
from verl.workers.rollout.sglang_rollout import sglang_rollout as upstream
from verl.workers.rollout.utils import ensure_async_iterator

from verl_musa.device import ipc

logger = logging.getLogger(__name__)

# Only for tests, and only on the simulator: shows that a stale server is seen in rollout_probs_diff.
DROP_SYNC_ENV = "VERL_MUSA_TEST_DROP_WEIGHT_SYNC"

_to_ipc_device = upstream._to_ipc_device
_host_copies = False


def _transferable(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` where the server can open it: on the device (verl's choice), or a copy on the host."""
    return ipc.to_host(tensor) if _host_copies else _to_ipc_device(tensor)


def needs_host_copies(config: Any) -> bool:
    """Whether weights must travel through host memory: no device IPC, or a server that computes on the CPU.

    Args:
        config: verl's rollout configuration.
    """
    engine_kwargs = (config.get("engine_kwargs", None) or {}).get("sglang", None) or {}
    return engine_kwargs.get("device") == "cpu" or not get_platform().is_ipc_supported()


def drop_asked() -> bool:
    """Whether the test switch that drops weight syncs is set; refused outside the simulator.

    Raises:
        RuntimeError: the switch is set on a real device.
    """
    if os.environ.get(DROP_SYNC_ENV) != "1":
        return False
    if not getattr(get_platform(), "simulated", False):
        raise RuntimeError(f"{DROP_SYNC_ENV}=1 is a test switch of the simulator: unset it on a real device")
    return True


class MusaServerAdapter(upstream.ServerAdapter):
    """verl's ServerAdapter; see the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        global _host_copies  # noqa: PLW0603 - verl calls a module function that knows no instance
        super().__init__(*args, **kwargs)
        self._syncs = 0
        _host_copies = needs_host_copies(self.config)
        if _host_copies:
            ipc.route_host_tensors(patch_torch)

    async def update_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], *args: Any, **kwargs: Any
    ) -> None:
        """Send all weights to this worker's server, as verl does.

        Raises:
            Exception: what verl raises when the server refuses; no shared memory is left behind then.
        """
        self._syncs += 1
        if self._syncs > 1 and drop_asked():
            await self._drop(weights)
            return
        with ipc.host_sharing() if _host_copies else contextlib.nullcontext():
            await super().update_weights(weights, *args, **kwargs)

    async def _drop(self, weights: Generator[tuple[str, torch.Tensor], None, None]) -> None:
        logger.error(
            "%s=1: weight sync %d is DROPPED, the server keeps old weights", DROP_SYNC_ENV, self._syncs
        )
        # Every rank must still walk the generator: gathering a sharded weight is a collective.
        async for _ in ensure_async_iterator(weights):
            pass


upstream._to_ipc_device = _transferable
