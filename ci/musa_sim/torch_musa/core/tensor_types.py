"""Typed tensors: ``torch.musa.FloatTensor`` and its like, which Megatron and older code name in strings and checks."""

from __future__ import annotations

from typing import Any

import torch


class _TensorType(type):
    """A type whose instances are the musa tensors of one dtype."""

    dtype: torch.dtype
    is_musa = True
    layout = torch.strided

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "musa"
            and instance.dtype == cls.dtype
        )

    def __call__(cls, *args: Any, device: Any = "musa") -> torch.Tensor:
        """As ``torch.FloatTensor``: sizes give an uninitialised tensor, a sequence or tensor gives its values."""
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].to(device=device, dtype=cls.dtype)
        if len(args) == 1 and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device=device)
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(sizes or (0,), dtype=cls.dtype, device=device)


def _make(name: str, dtype: torch.dtype) -> _TensorType:
    # The full name is the type's name because Tensor.type(cls) reads it from there.
    return _TensorType(
        f"torch.musa.{name}", (), {"dtype": dtype, "__module__": "torch.musa", "__qualname__": name}
    )


DoubleTensor = _make("DoubleTensor", torch.float64)
FloatTensor = _make("FloatTensor", torch.float32)
HalfTensor = _make("HalfTensor", torch.float16)
BFloat16Tensor = _make("BFloat16Tensor", torch.bfloat16)
LongTensor = _make("LongTensor", torch.int64)
IntTensor = _make("IntTensor", torch.int32)
ShortTensor = _make("ShortTensor", torch.int16)
CharTensor = _make("CharTensor", torch.int8)
ByteTensor = _make("ByteTensor", torch.uint8)
BoolTensor = _make("BoolTensor", torch.bool)

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]
