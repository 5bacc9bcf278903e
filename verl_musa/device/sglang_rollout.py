"""verl's SGLang adapter in the trainer workers, with weights handed over in a way that the device supports."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable
from typing import Any

import torch
from sglang.srt.utils import patch_torch
from verl.plugin.platform import get_platform
from verl.workers.rollout.sglang_rollout import sglang_rollout as upstream

from verl_musa.device import ipc
from verl_musa.device.drop import drop, drop_asked

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


class MusaServerAdapter(upstream.ServerAdapter):
    """verl's ServerAdapter; see the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        global _host_copies  # noqa: PLW0603 - verl calls a module function that knows no instance
        super().__init__(*args, **kwargs)
        self._syncs = 0
        _host_copies = needs_host_copies(self.config)
        if _host_copies:
            ipc.require_host_reducer(patch_torch)

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Send all weights to this worker's server, as verl does.

        Raises:
            Exception: what verl raises when the server refuses; no shared memory is left behind then.
        """
        self._syncs += 1
        if self._syncs > 1 and drop_asked():
            await drop(weights, self._syncs)
            return
        try:
            with ipc.host_sharing() if _host_copies else contextlib.nullcontext():
                await super().update_weights(weights, *args, **kwargs)
        except BaseException:
            if hasattr(weights, "aclose"):
                # Weights that come from another pool: its sender learns now, not after its time-out, that they are not taken.
                await weights.aclose()
            raise


upstream._to_ipc_device = _transferable
