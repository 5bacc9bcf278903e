"""On an accelerator that is not CUDA, the manager must offload; the flag is all that its two users look at."""

import sys
from types import ModuleType, SimpleNamespace

from support import Stub, load

platform = ModuleType("verl.plugin.platform")
platform.get_platform = lambda: SimpleNamespace(device_name="musa", is_available=lambda: True)  # type: ignore[attr-defined]
sys.modules["verl.plugin.platform"] = platform
device = Stub("verl.utils.device")
device.is_cuda_available = False
sys.modules["verl.utils.device"] = device
module = load(
    "verl.utils.checkpoint.fsdp_checkpoint_manager",
    distribution="verl",
    stubs=(
        "accelerate", "omegaconf", "peft", "safetensors", "torch", "transformers", "torchdata",
        "verl.utils.fs", "verl.utils.fsdp_utils", "verl.utils.logger", "verl.utils.checkpoint.checkpoint_manager",
        "verl.utils.checkpoint.checkpoint_handler", "verl.utils.transformers_compat", "verl.utils.chat_template",
        "verl.plugin", "verl.trainer", "verl.workers",
    ),
)  # fmt: skip
if not module.is_cuda_available:
    raise SystemExit("offload_to_cpu is False")
