"""Saving a sharded model and optimizer must not make a second copy of them in the device's memory.

Two ranks of FSDP1 on the simulated device, saved by verl's manager.
"""

import datetime as dt
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support import Stub, load, register_platform, start_again

SECOND = "second"
rank = int(sys.argv[-1] == SECOND)
register_platform()

import torch  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402


def made(path: str) -> str:
    Path(path).mkdir(parents=True, exist_ok=True)
    return path


def manager_module() -> Any:
    """Import verl's manager; its base class and its helpers would import transformers, accelerate and peft."""
    helpers = Stub("verl.utils.fsdp_utils")
    helpers.fsdp_version = lambda _model: 1
    helpers.get_fsdp_state_ctx = FullyShardedDataParallel.state_dict_type
    files = Stub("verl.utils.fs")
    files.local_mkdir_safe = made
    sys.modules |= {module.__name__: module for module in (helpers, files)}
    return load(
        "verl.utils.checkpoint.fsdp_checkpoint_manager",
        distribution="verl",
        stubs=(
            "accelerate", "omegaconf", "peft", "transformers", "torchdata", "verl.utils.logger",
            "verl.utils.checkpoint.checkpoint_manager", "verl.utils.checkpoint.checkpoint_handler",
            "verl.utils.transformers_compat", "verl.utils.chat_template", "verl.trainer", "verl.workers",
        ),
    )  # fmt: skip


class Model(torch.nn.Linear):
    """One layer of 4 MiB, with what the manager asks of a Hugging Face model."""

    config = SimpleNamespace(save_pretrained=lambda _folder: None)

    def can_generate(self) -> bool:
        return False


def noting_devices(save: Any, seen: set[str]) -> Any:
    """Return torch.save, noting where the parts of what it saves lie."""

    def noted(state: dict[str, Any], path: str) -> None:
        for value in state.values():
            if isinstance(value, DTensor):
                seen.add(value.to_local().device.type)
        save(state, path)

    return noted


folder = Path(os.environ.setdefault("SCENARIO_FOLDER", tempfile.mkdtemp(prefix="verl-musa-scenario-")))
second = None if rank else start_again(__file__, SECOND)
try:
    torch.musa.set_device(rank)
    torch.distributed.init_process_group(
        "cpu:gloo,musa:mccl",
        store=torch.distributed.FileStore(str(folder / "store"), 2),
        rank=rank,
        world_size=2,
        timeout=dt.timedelta(seconds=240),
    )
    module = manager_module()
    model = FullyShardedDataParallel(
        Model(1024, 1024, bias=False).to("musa"),
        device_id=torch.device("musa", rank),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        # As verl does. Without a mesh torch itself takes shards of a mixed process group for host memory, and copies nothing.
        device_mesh=init_device_mesh("musa", (2,)),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1024, device="musa")).sum().backward()
    optimizer.step()
    manager = module.FSDPCheckpointManager.__new__(module.FSDPCheckpointManager)
    vars(manager).update(
        model=model, optimizer=optimizer, rank=rank, world_size=2, processing_class=None, lr_scheduler=None,
        should_save_model=True, should_save_optimizer=True, should_save_extra=False, should_save_hf_model=False,
        should_save_lora_only=False, ensure_checkpoint_capacity=lambda _keep: None,
        register_checkpoint=lambda *_: None,
    )  # fmt: skip
    devices: set[str] = set()
    torch.save = noting_devices(torch.save, devices)
    manager.save_checkpoint(str(folder / "saved"), global_step=1)
    if devices != {"cpu"}:
        raise SystemExit(f"offload_to_cpu is False: the copy that was saved lay on {devices}")
    if second is not None and second.wait(240) != 0:
        raise SystemExit("the second rank failed")
finally:
    if second is not None:
        second.kill()
        second.wait()
        shutil.rmtree(folder)
os._exit(0)
