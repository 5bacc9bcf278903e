"""verl's SGLang server actor and replica for musa."""

from __future__ import annotations

import logging
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica

from verl_musa.device import proof, sglang_plugin, split
from verl_musa.device.replica import ProvenReward

logger = logging.getLogger(__name__)


class MusaSGLangHttpServer(SGLangHttpServer):
    """verl's server actor: proves its platform first, and checks that seeded sampling is really in force."""

    _seeding_checked = False

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """Prove, then launch on the devices of this server's own workers.

        Raises:
            ExpectationError: this actor is not on the platform that the run expects.
            RuntimeError: the devices of a pool of the rollout's own do not lie side by side.
        """
        proof.prove("sglang-server")
        if self.rollout_mode == RolloutMode.STANDALONE and proof.all_visible():
            self.base_gpu_id = await split.base_device(self.workers)
        sglang_plugin.announce_server()
        await super().launch_server(*args, **kwargs)

    async def generate(
        self, prompt_ids: Any, sampling_params: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Generate as verl does.

        Raises:
            RuntimeError: the request carries a sampling seed that no scheduler of this server used.
        """
        # Zero temperature takes the most likely token: there is nothing to seed.
        seeded = sampling_params.get("sampling_seed") is not None and sampling_params.get("temperature") != 0
        output = await super().generate(prompt_ids, sampling_params, *args, **kwargs)
        if seeded and not self._seeding_checked and output.token_ids:
            sglang_plugin.require_marks()
            self._seeding_checked = True
        return output


class MusaSGLangReplica(ProvenReward, SGLangReplica):
    """verl's replica, starting the server actor above."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(MusaSGLangHttpServer)
