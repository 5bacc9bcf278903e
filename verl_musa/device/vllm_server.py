"""verl's vLLM server actor and replica for musa."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_musa.device import proof
from verl_musa.device.replica import ProvenReward
from verl_musa.device.vllm_seed import vllm_sampling


class MusaVLLMHttpServer(vLLMHttpServer):
    """verl's server actor: proves its platform first, and hands each request's own seed to vLLM."""

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """Prove, then launch.

        Raises:
            ExpectationError: this actor is not on the platform that the run expects.
        """
        proof.prove("vllm-server")
        await super().launch_server(*args, **kwargs)

    async def generate(
        self, prompt_ids: Any, sampling_params: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Generate as verl does."""
        return await super().generate(prompt_ids, vllm_sampling(sampling_params), *args, **kwargs)

    def _get_worker_extension_cls(self) -> str:
        return "verl_musa.device.vllm_worker.MusaWorkerExtension"


class MusaVLLMReplica(ProvenReward, vLLMReplica):
    """verl's replica, starting the server actor above."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(MusaVLLMHttpServer)
