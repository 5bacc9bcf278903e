"""With a SGLang that wants sessions, the adapter must be made, open one, and close it on every path."""

import abc
import asyncio
import sys
from types import SimpleNamespace
from typing import Any

from support import Stub, load


class EngineBase(abc.ABC):
    @abc.abstractmethod
    def begin_weight_update(self, selector: str = "all") -> Any: ...

    @abc.abstractmethod
    def end_weight_update(self) -> Any: ...


base = Stub("sglang.srt.entrypoints.EngineBase")
base.EngineBase = EngineBase
sys.modules["sglang.srt.entrypoints.EngineBase"] = base
rollout = Stub("verl.workers.rollout.base")
rollout.BaseRollout = object
sys.modules["verl.workers.rollout.base"] = rollout
module = load(
    "verl.workers.rollout.sglang_rollout.sglang_rollout",
    distribution="verl",
    stubs=(
        "aiohttp", "requests", "ray", "sglang", "torch", "verl.utils", "verl.workers.config",
        "verl.workers.rollout.sglang_rollout.utils",
    ),
)  # fmt: skip
posted: list[str] = []


async def request(_self: Any, endpoint: str, payload: Any = None, **_: Any) -> dict[str, Any]:
    posted.append(endpoint)
    if endpoint == "end_weight_update" and "end fails" in posted:
        raise OSError("no answer")
    return {}


client = sys.modules["verl.workers.rollout.sglang_rollout.http_server_engine"]
client.ServerArgs = lambda **_: SimpleNamespace(host="h", port=1, node_rank=0)  # type: ignore[attr-defined]
client.AsyncHttpServerAdapter._make_async_request = request
engine = client.AsyncHttpServerAdapter(launch_server=False)


async def ready(_self: Any) -> None:
    return None


async def delta(_self: Any, weights: Any, **_: Any) -> None:
    if isinstance(weights, Exception):
        raise weights
    posted.append(weights)


adapter = module.ServerAdapter.__new__(module.ServerAdapter)
type(adapter)._init_server_adapter = ready
type(adapter)._update_weights_delta = delta
type(adapter)._is_server_tp_leader = lambda self: self.leader
adapter._engine, adapter.leader = engine, True


def update(weights: Any, *expected: str) -> None:
    posted.clear()
    asyncio.run(adapter.update_weights(weights, wire_format="delta_flush"))
    if posted != list(expected):
        raise SystemExit(f"posted {posted}, expected {expected}")


update("weights", "begin_weight_update", "weights", "end_weight_update")
for before in ([], ["end fails"]):
    posted[:] = before
    try:
        asyncio.run(adapter.update_weights(ValueError("refused"), wire_format="delta_flush"))
    except ValueError:
        if posted[len(before) :] != ["begin_weight_update", "end_weight_update"]:
            raise SystemExit(f"the session stayed open: {posted}") from None
    else:
        raise SystemExit("the error was lost")
adapter.leader = False
update("weights", "weights")
adapter._engine = None
update("weights", "weights")
