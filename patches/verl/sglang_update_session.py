"""Since SGLang 0.5.21 weights may only be updated inside a session, which verl does not open."""

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

CLIENT = "verl.workers.rollout.sglang_rollout.http_server_engine:AsyncHttpServerAdapter"
BEGIN = f"{CLIENT}.begin_weight_update"
END = f"{CLIENT}.end_weight_update"
REQUEST = f"{CLIENT}._make_async_request"
UPDATE = "verl.workers.rollout.sglang_rollout.sglang_rollout:ServerAdapter.update_weights"

logger = logging.getLogger(__name__)

PATCH = Patch(
    id="verl-sglang-update-session",
    summary="weight updates run inside a session that is closed on every path",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        "verl.workers.rollout.sglang_rollout.http_server_engine:AsyncHttpServerAdapter.begin_weight_update": {
            "0.9.1": "absent",
        },
        "verl.workers.rollout.sglang_rollout.http_server_engine:AsyncHttpServerAdapter.end_weight_update": {
            "0.9.1": "absent",
        },
        "verl.workers.rollout.sglang_rollout.http_server_engine:AsyncHttpServerAdapter._make_async_request": {
            "0.9.1": "e8922762b4e5295148451961e40501c9a7b3548bb801126fd0a8c0844d835c31",
        },
        UPDATE: {
            "0.9.1": "ea120ad1a02fa4ff39e9f95b3344830db8033c9053c9afd456d8a4367e8315cd",
        },
    },
    reason="Without a session SGLang answers HTTP 400 to an update; from 0.5.23 the two methods are abstract too, so "
    "that verl's adapter cannot even be made.",
    source="SGLang 0.5.23, srt/entrypoints/{EngineBase,http_server}.py",
    remove_when=RemoveWhen(text="verl's adapter has the methods itself", defines=BEGIN),
    without="abstract method",
)


@PATCH.unless
def _no_sessions(_module: ModuleType) -> str | None:
    from sglang.srt.managers import io_struct

    return None if hasattr(io_struct, "BeginWeightUpdateReqInput") else "this SGLang has no update sessions"


@PATCH.attribute(BEGIN, unbound=True)
def _begin(_current: Any) -> Callable[..., Any]:
    async def begin_weight_update(self: Any, selector: str = "all") -> Any:
        return await self._make_async_request("begin_weight_update", {"selector": selector})

    return begin_weight_update


@PATCH.attribute(END, unbound=True)
def _end(_current: Any) -> Callable[..., Any]:
    async def end_weight_update(self: Any) -> Any:
        return await self._make_async_request("end_weight_update", {})

    return end_weight_update


@PATCH.wrap(UPDATE)
def _in_session(original: Callable[..., Any]) -> Callable[..., Any]:
    async def update_weights(self: Any, *args: Any, **kwargs: Any) -> Any:
        await self._init_server_adapter()
        # One adapter alone may not send weights as base weights: adapters have their own request.
        adapter_only = kwargs.get("peft_config") and kwargs.get("base_sync_done", False)
        if self._engine is None or not self._is_server_tp_leader() or adapter_only:
            return await original(self, *args, **kwargs)
        await self._engine.begin_weight_update()
        try:
            result = await original(self, *args, **kwargs)
        except BaseException:
            await _close_after_error(self._engine)
            raise
        await self._engine.end_weight_update()
        return result

    return update_weights


async def _close_after_error(engine: Any) -> None:
    """Close the session, letting the error that is under way be the one that is seen."""
    try:
        await engine.end_weight_update()
    except Exception:
        logger.exception("the weight-update session could not be closed after a failed update")
