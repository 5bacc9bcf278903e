"""Two ranks hand a bucket of device memory to a slow server, and use it again as soon as they may.

Without the barrier the second rank's memory has other contents when the server reads it. After an error no rank may wait
for ever.
"""

import asyncio
import datetime as dt
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from support import Stub, load, load_sglang_reductions, start_again

SECOND = "second"
SLOW_S = 1.0
rank = int(sys.argv[-1] == SECOND)

import torch  # noqa: E402
import torch_musa  # noqa: E402, F401
from torch.multiprocessing import reductions  # noqa: E402

load_sglang_reductions()


@dataclass
class LocalSerializedTensor:
    """As SGLang's: one handle per rank."""

    values: list[Any]


class Handles:
    """SGLang's serializer without the bytes: the function and arguments that open the device's memory."""

    @staticmethod
    def serialize(value: Any) -> Any:
        return reductions.reduce_tensor(value) if isinstance(value, torch.Tensor) else value


def packages() -> ModuleType:
    """Import verl's module over SGLang's real weight_sync.utils."""
    sys.modules["sglang.srt.utils"].MultiprocessingSerializer = Handles  # type: ignore[attr-defined]
    updater = Stub("sglang.srt.model_executor.model_runner_components.weight_updater")
    updater.LocalSerializedTensor = LocalSerializedTensor
    structures = Stub("sglang.srt.managers.io_struct")
    structures.UpdateWeightsFromTensorReqInput = lambda **fields: fields
    sys.modules |= {module.__name__: module for module in (updater, structures)}
    around = ("sglang.srt.entrypoints", "sglang.srt.managers", "sglang.srt.model_executor")
    load("sglang.srt.weight_sync.utils", distribution="sglang", stubs=around)
    for name in ("sglang", "sglang.srt", "sglang.srt.utils"):
        sys.modules[name] = Stub(name)
    return load(
        "verl.workers.rollout.sglang_rollout.sglang_rollout",
        distribution="verl",
        stubs=(
            "ray", "sglang", "verl.utils", "verl.workers.config", "verl.workers.rollout.base",
            "verl.workers.rollout.sglang_rollout.http_server_engine", "verl.workers.rollout.sglang_rollout.utils",
        ),
    )  # fmt: skip


class Server:
    """Reads the second rank's memory late, and refuses the second update."""

    def __init__(self) -> None:
        self.read: list[float] = []

    async def update_weights_from_tensor(self, request: dict[str, Any]) -> str:
        await asyncio.sleep(SLOW_S)
        ((_, tensor),) = request["serialized_named_tensors"][0]
        opened, arguments = tensor.values[1]
        self.read.append(float(opened(*arguments)[0]))
        if len(self.read) > 1:
            raise ValueError("refused")
        return "answer"


def update(module: ModuleType, server: Server, bucket: torch.Tensor) -> Any:
    call = {
        "engine": server,
        "params_batch": [("weight", bucket)],
        "device_mesh_key": "infer_tp",
        "device_mesh": mesh,
    }
    try:
        return asyncio.run(module.sgl_update_weights(**call))
    finally:
        bucket.fill_(-1.0)


folder = Path(os.environ.setdefault("SCENARIO_FOLDER", tempfile.mkdtemp(prefix="verl-musa-scenario-")))
second = None if rank else start_again(__file__, SECOND)
try:
    torch.musa.set_device(rank)
    torch.distributed.init_process_group(
        "mccl",
        store=torch.distributed.FileStore(str(folder / "store"), 2),
        rank=rank,
        world_size=2,
        timeout=dt.timedelta(seconds=240),
    )
    mesh = torch.distributed.init_device_mesh("musa", (2,), mesh_dim_names=("infer_tp",))
    module, server = packages(), Server()
    bucket = torch.full((1024,), 7.0, device=f"musa:{rank}")
    answer = update(module, server, bucket)
    if rank == 0 and server.read != [7.0]:
        raise SystemExit(f"a rank left before the server had answered: the server read {server.read}")
    if rank == 0 and answer != "answer":
        raise SystemExit("the answer was lost")
    try:
        update(module, server, bucket)
        failed = False
    except ValueError:
        failed = True
    if failed is not (rank == 0):
        raise SystemExit("the error was lost, or seen on the wrong rank")
    if second is not None and second.wait(240) != 0:
        raise SystemExit("the second rank failed")
finally:
    if second is not None:
        second.kill()
        second.wait()
        (folder / "store").unlink(missing_ok=True)
        folder.rmdir()
# Closing the group waits for the other rank, which is gone where the scenario fails.
os._exit(0)
