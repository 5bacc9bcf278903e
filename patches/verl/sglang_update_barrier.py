"""Ranks of one SGLang server hand over device memory and free it before the server has read it."""

from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "verl.workers.rollout.sglang_rollout.sglang_rollout"
TARGET = f"{MODULE}:sgl_update_weights"
CALLER = f"{MODULE}:ServerAdapter.update_weights"

PATCH = Patch(
    id="verl-sglang-update-barrier",
    summary="no tensor-parallel rank leaves a weight bucket before the server has loaded it",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        "verl.workers.rollout.sglang_rollout.sglang_rollout:sgl_update_weights": {
            "0.9.1": "a5fb8f68f9218df2f1897a745e983e6e7926e1b81129bcd5fc508c66b8c6950f",
        },
        "verl.workers.rollout.sglang_rollout.sglang_rollout:ServerAdapter.update_weights": {
            "0.9.1": "ea120ad1a02fa4ff39e9f95b3344830db8033c9053c9afd456d8a4367e8315cd",
        },
    },
    reason="Only the first rank waits for the server's answer. The others go on to the next bucket as soon as their "
    "handles are gathered, and the memory behind those handles is used again while the server reads it.",
    source="verl 0.9.1, workers/rollout/sglang_rollout/sglang_rollout.py; public MUSA runs add a barrier on infer_tp",
    remove_when=RemoveWhen(text="verl or SGLang synchronises the ranks after each bucket"),
    without="a rank left before the server had answered",
)


@PATCH.wrap(TARGET)
def _then_wait_for_all(original: Callable[..., Any]) -> Callable[..., Any]:
    async def update_weights(
        engine: Any, params_batch: Any, device_mesh_key: str, device_mesh: Any, *args: Any, **kwargs: Any
    ) -> Any:
        import torch

        mesh = device_mesh[device_mesh_key]
        try:
            return await original(engine, params_batch, device_mesh_key, device_mesh, *args, **kwargs)
        finally:
            # Also after an error: the other ranks are on their way to this barrier and must not wait for ever.
            if mesh.size() > 1:
                torch.distributed.barrier(group=mesh.get_group())

    return update_weights
