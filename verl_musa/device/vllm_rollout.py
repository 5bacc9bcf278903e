"""verl's vLLM adapter in the trainer workers: weights through host memory where the server is on the CPU, and no wait without end."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any

import torch
from verl.plugin.platform import get_platform
from verl.workers.rollout.vllm_rollout import vllm_rollout as upstream

from verl_musa.device import vllm_transfer
from verl_musa.device.drop import drop, drop_asked

RECEIVE = "update_weights_from_ipc"


class MusaVLLMAdapter(upstream.ServerAdapter):
    """verl's ServerAdapter; see the module's docstring."""

    use_shm: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._syncs = 0
        # vLLM knows no simulated device: beside the simulator its CPU build computes, and takes weights from host memory.
        self.use_shm = self.use_shm or bool(getattr(get_platform(), "simulated", False))

    async def _execute_method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the server as verl does, and let the sender of weights see when that call fails."""
        result = await super()._execute_method(method, *args, **kwargs)
        if method == RECEIVE and result is not None:
            answer = result.future()
            vllm_transfer.BoundedWeightSender.failure = staticmethod(
                lambda: answer.exception() if answer.done() else None
            )
        return result

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Send all weights to this worker's server, as verl does.

        Raises:
            WeightSyncError: the server failed, or did not answer within the bound; no shared memory is left behind then.
        """
        self._syncs += 1
        if self._syncs > 1 and drop_asked():
            await drop(weights, self._syncs)
            return
        try:
            await super().update_weights(weights, *args, **kwargs)
        except BaseException:
            if hasattr(weights, "aclose"):
                # Weights that come from another pool: its sender learns now, not after its time-out, that they are not taken.
                await weights.aclose()
            raise


upstream.BucketedWeightSender = vllm_transfer.BoundedWeightSender
