"""A rank must not leave a bucket before all ranks are through it, not even when the update fails."""

import asyncio
import sys
from typing import Any

from support import Stub, load

order: list[str] = []


async def server_side(engine: object, params_batch: Any, device_mesh_key: str, device_mesh: Any) -> str:
    order.append("answered")
    if params_batch == "bad":
        raise ValueError("refused")
    return "answer"


class Mesh:
    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def __getitem__(self, key: str) -> Any:
        return self

    def size(self) -> int:
        return self.ranks

    def get_group(self) -> str:
        return "infer_tp group"


distributed = Stub("torch.distributed")
distributed.barrier = lambda group: order.append(f"barrier {group}")
torch = Stub("torch")
torch.distributed = distributed
sys.modules.update({"torch": torch, "torch.distributed": distributed})
sync = Stub("sglang.srt.weight_sync.utils")
sync.update_weights = server_side
sys.modules["sglang.srt.weight_sync.utils"] = sync
module = load(
    "verl.workers.rollout.sglang_rollout.sglang_rollout",
    distribution="verl",
    stubs=(
        "ray", "sglang", "torch", "verl.utils", "verl.workers.config", "verl.workers.rollout.base",
        "verl.workers.rollout.sglang_rollout.http_server_engine", "verl.workers.rollout.sglang_rollout.utils",
    ),
)  # fmt: skip


def update(batch: str, ranks: int) -> Any:
    call = {"engine": None, "params_batch": batch, "device_mesh_key": "infer_tp", "device_mesh": Mesh(ranks)}
    return asyncio.run(module.sgl_update_weights(**call))


answer = update("good", 2)
if order != ["answered", "barrier infer_tp group"]:
    raise SystemExit(f"a rank left before the server had answered: {order}")
if answer != "answer":
    raise SystemExit("the answer was lost")
order.clear()
update("good", 1)
if order != ["answered"]:
    raise SystemExit("a single rank waited for itself")
try:
    update("bad", 2)
except ValueError:
    if order[1:] != ["answered", "barrier infer_tp group"]:
        raise SystemExit("the other ranks would wait for ever after an error") from None
else:
    raise SystemExit("the error was lost")
