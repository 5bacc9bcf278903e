"""verl's FSDP1 checkpoints are gathered in host memory only on CUDA, going by a flag that is fixed at import."""

from verl_musa.patching import Patch, RemoveWhen

TARGET = "verl.utils.checkpoint.fsdp_checkpoint_manager:is_cuda_available"
SAVE = "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.save_checkpoint"
LOAD = "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint"

PATCH = Patch(
    id="verl-fsdp-checkpoint-offload",
    summary="sharded state dicts go through host memory on every accelerator, not on CUDA only",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        TARGET: {
            "0.9.1": "1e71c392208c24f69341bfc9f07561f1e463cecea285bf6f1d7db64f5a144c8d",
        },
        SAVE: {
            "0.9.1": "37758358123c871f29bcdbca3f595cdeb9dc4bc15d59b5a11763b7a219b4c26b",
        },
        LOAD: {
            "0.9.1": "c692581a54627e6ac572bd393b1bdce25dceac007af1aa5ade60adf2498237ba",
        },
    },
    reason="offload_to_cpu is False wherever torch.cuda is absent, so that saving keeps a second copy of the sharded "
    "model and optimizer in device memory, where the first barely fits.",
    source="verl 0.9.1, utils/checkpoint/fsdp_checkpoint_manager.py",
    remove_when=RemoveWhen(text="the manager asks verl's platform"),
    without="offload_to_cpu is False",
)


@PATCH.attribute(TARGET)
def _any_accelerator(current: bool) -> bool:
    from verl.plugin.platform import get_platform

    platform = get_platform()
    return current or (platform.device_name != "cpu" and platform.is_available())
