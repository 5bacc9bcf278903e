"""What verl adds to vLLM's workers, with bounded weight updates and, on the CPU, rows that do not depend on one another."""

from __future__ import annotations

import logging
from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_musa.device import vllm_transfer
from verl_musa.device.sglang_plugin import seeding_asked
from verl_musa.device.wide import widen

logger = logging.getLogger(__name__)

vllm_transfer.install()


class MusaWorkerExtension(vLLMColocateWorkerExtension):
    """verl's extension of vLLM's worker; vLLM mixes it into its worker class."""

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> None:
        """Take new weights as verl does, then make the layers independent of the batch where the run asks for it.

        Raises:
            WeightSyncError: the trainer stopped sending.
        """
        super().update_weights_from_ipc(*args, **kwargs)
        if seeding_asked():
            # After each update: vLLM chooses a layer's product anew whenever weights were loaded.
            changed = sum(widen(model) for model in self._iter_all_models())
            logger.info("%d linear layers compute in float64", changed)
