"""Padding of jagged tensors on devices whose torch lacks the kernel.

verl pads and un-pads nested tensors on the device in each training step (``NestedTensor.to_padded_tensor``). torch_musa has
no kernel for the two aten ops behind that; here they are made of index operations, which it has. Where a torch_musa
brings its own kernels, nothing is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

DISPATCH_KEY = "PrivateUse1"
TO_PADDED = "aten::_jagged_to_padded_dense_forward"
TO_JAGGED = "aten::_padded_dense_to_jagged_forward"

_kept_libraries: list[Any] = []


def to_padded(
    values: torch.Tensor,
    offsets: Sequence[torch.Tensor],
    max_lengths: Sequence[int],
    padding_value: float = 0.0,
) -> torch.Tensor:
    """Spread jagged rows over a padded tensor.

    Args:
        values: (total, ...), the rows one after the other.
        offsets: one tensor (rows + 1,), where each row starts and the last one ends.
        max_lengths: one number, the padded length; longer rows are cut.
        padding_value: what fills the rest.

    Returns:
        (rows, max_length, ...), dtype and device of ``values``.

    Raises:
        NotImplementedError: more than one jagged dimension.
    """
    starts, lengths = _rows(offsets)
    length = int(max_lengths[0])
    inside, source = _places(starts, lengths, length)
    padded = values.new_full((starts.shape[0], length, *values.shape[1:]), padding_value)
    padded[inside] = values[source]
    return padded


def to_jagged(dense: torch.Tensor, offsets: Sequence[torch.Tensor], total: int | None = None) -> torch.Tensor:
    """Collect the rows of a padded tensor; the inverse of to_padded and its gradient.

    Args:
        dense: (rows, max_length, ...).
        offsets: one tensor (rows + 1,).
        total: number of rows of the result; the last offset by default.

    Returns:
        (total, ...), zero where a row is longer than ``dense``.

    Raises:
        NotImplementedError: more than one jagged dimension.
    """
    starts, lengths = _rows(offsets)
    inside, target = _places(starts, lengths, dense.shape[1])
    count = int(offsets[0][-1]) if total is None else int(total)
    values = dense.new_zeros((count, *dense.shape[2:]))
    values[target] = dense[inside]
    return values


def _rows(offsets: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    if len(offsets) != 1:
        raise NotImplementedError(f"found {len(offsets)} jagged dimensions; this device supports one")
    return offsets[0][:-1], offsets[0][1:] - offsets[0][:-1]


def _places(starts: torch.Tensor, lengths: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mask (rows, length) of the places that hold values, and where in ``values`` each of them lies."""
    columns = torch.arange(length, device=starts.device)
    inside = columns.unsqueeze(0) < lengths.unsqueeze(1)
    return inside, (starts.unsqueeze(1) + columns.unsqueeze(0))[inside]


def register() -> list[str]:
    """Register what the device lacks; return the names of the ops registered now."""
    kernels: dict[str, Callable[..., torch.Tensor]] = {TO_PADDED: to_padded, TO_JAGGED: to_jagged}
    missing = [
        name for name in kernels if not torch._C._dispatch_has_kernel_for_dispatch_key(name, DISPATCH_KEY)
    ]
    if missing:
        library = torch.library.Library("aten", "IMPL")
        for name in missing:
            library.impl(name.removeprefix("aten::"), kernels[name], DISPATCH_KEY)
        _kept_libraries.append(library)
    return missing
