"""verl gives SGLang's HTTP server 60 s for anything, which is less than MUSA's first requests take."""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, PatchError, RemoveWhen

MODULE = "verl.workers.rollout.sglang_rollout.http_server_engine"
SYNC_INIT = f"{MODULE}:HttpServerAdapter.__init__"
ASYNC_INIT = f"{MODULE}:AsyncHttpServerAdapter.__init__"
REQUEST = f"{MODULE}:AsyncHttpServerAdapter._make_async_request"

# JIT compilation of attention kernels takes minutes at the first request; 600 s is what public MUSA runs use.
TIMEOUT_S = 600.0
TIMEOUT_ENV = "VERL_MUSA_SGLANG_TIMEOUT_S"

PATCH = Patch(
    id="verl-sglang-http-timeout",
    summary=f"requests to SGLang may take 600 s ({TIMEOUT_ENV} sets another bound), not 60 s",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        "verl.workers.rollout.sglang_rollout.http_server_engine:HttpServerAdapter.__init__": {
            "0.9.1": "62508154ce2b8c8360ee52eb4c4e27ead0acac88ab41fc9da3d4b04cf3d9145f",
        },
        "verl.workers.rollout.sglang_rollout.http_server_engine:AsyncHttpServerAdapter.__init__": {
            "0.9.1": "69f4737b004e2097b9b35dd3444abedd2bd4819379422e7bed35f5e735a05569",
        },
        "verl.workers.rollout.sglang_rollout.http_server_engine:AsyncHttpServerAdapter._make_async_request": {
            "0.9.1": "e8922762b4e5295148451961e40501c9a7b3548bb801126fd0a8c0844d835c31",
        },
    },
    reason="The bound is a default argument, taken when the class is made, and no configuration reaches it. "
    "Weight updates and memory release ignore even the adapter's own timeout.",
    source="verl 0.9.1, workers/rollout/sglang_rollout/http_server_engine.py",
    remove_when=RemoveWhen(text="the timeout is configurable in verl"),
    without="a request is bound by 60.0 s",
)


def _timeout_s() -> float:
    text = os.environ.get(TIMEOUT_ENV, str(TIMEOUT_S))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise PatchError("not a time limit", where=TIMEOUT_ENV, found=text, expected="seconds, above 0")
    return value


def _bind_default(original: Callable[..., Any], timeout: Callable[[Any], float]) -> Callable[..., Any]:
    """Return ``original`` with another default for its `timeout`; a given one is left alone."""
    signature = inspect.signature(original)
    position = list(signature.parameters).index("timeout")

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < position:
            kwargs.setdefault("timeout", timeout(self))
        return original(self, *args, **kwargs)

    return call


@PATCH.wrap(SYNC_INIT)
def _sync_init(original: Callable[..., None]) -> Callable[..., None]:
    return _bind_default(original, lambda _self: _timeout_s())


@PATCH.wrap(ASYNC_INIT)
def _async_init(original: Callable[..., None]) -> Callable[..., None]:
    return _bind_default(original, lambda _self: _timeout_s())


@PATCH.wrap(REQUEST)
def _request(original: Callable[..., Any]) -> Callable[..., Any]:
    return _bind_default(original, lambda self: float(self.timeout))
