"""torch.compile: functions given musa tensors run eagerly, with one warning.

There is no code generator for the simulated device, and eager execution keeps results equal to CPU. Compiled CPU code
in the same process is not touched.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger(__name__)
_said: set[str] = set()
MAX_DEPTH = 4  # how deep lists and dicts of arguments are searched


def _say_once(name: str) -> None:
    if not _said:
        # A log record, not a warning: the fallback is by design, and callers may turn warnings into errors.
        log.warning(
            "torch.compile: %s got musa tensors; the simulated device runs such functions eagerly", name
        )
    _said.add(name)


def on_musa(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether ``value`` is, or holds within ``depth`` containers, a musa tensor or a module with one."""
    if isinstance(value, torch.Tensor):
        return value.device.type == "musa"
    if isinstance(value, torch.nn.Module):
        return any(parameter.device.type == "musa" for parameter in value.parameters())
    if depth > 0 and isinstance(value, (list, tuple)):
        return any(on_musa(item, depth - 1) for item in value)
    if depth > 0 and isinstance(value, dict):
        return any(on_musa(item, depth - 1) for item in value.values())
    return False


def _guarded(compile_: Callable[[], Callable[..., Any]], eager: Callable[..., Any]) -> Callable[..., Any]:
    """``eager`` for calls with musa tensors, else what ``compile_`` makes at the first such call."""
    owner = getattr(eager, "__self__", None)
    compiled = functools.cache(compile_)

    @functools.wraps(eager)
    def call(*args: Any, **kwargs: Any) -> Any:
        if on_musa(args) or on_musa(kwargs) or on_musa(owner):
            _say_once(getattr(eager, "__qualname__", type(eager).__name__))
            return eager(*args, **kwargs)
        return compiled()(*args, **kwargs)

    call._torchdynamo_orig_callable = eager  # type: ignore[attr-defined]  # where dynamo's own wrapper keeps it
    return call


def _wrap_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(model: Any = None, **kwargs: Any) -> Any:  # noqa: A001
        if model is None:  # used as @torch.compile(...)
            return lambda function: compile(function, **kwargs)
        if isinstance(model, torch.nn.Module):
            optimized = original(model, **kwargs)
            if optimized is not model:
                forward = optimized.forward
                optimized.forward = _guarded(lambda: forward, model)
            return optimized
        if isinstance(model, type) or not callable(model) or kwargs.get("disable"):
            return original(model, **kwargs)
        # Compiled at the first call off musa: until then inductor, which is slow to import, is not needed.
        return _guarded(lambda: original(model, **kwargs), model)

    return compile


def _graph_on_musa(graph_module: torch.fx.GraphModule, inputs: Any) -> bool:
    if on_musa(list(inputs)) or on_musa(graph_module) or on_musa(list(graph_module.buffers())):
        return True
    return any(on_musa(node.meta.get("example_value")) for node in graph_module.graph.nodes)


def _wrap_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, model_: torch.fx.GraphModule, inputs_: Any) -> Any:
        if _graph_on_musa(model_, inputs_):
            _say_once("a captured graph")
            return model_.forward
        return original(self, model_, inputs_)

    return call


def install() -> None:
    """Wraps torch.compile (by arguments) and the inductor backend (for musa tensors reached through closures)."""
    inductor: Any = torch._TorchCompileInductorWrapper
    inductor.__call__ = _wrap_backend(inductor.__call__)
    torch.compile = _wrap_compile(torch.compile)
