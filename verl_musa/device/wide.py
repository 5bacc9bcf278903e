"""Linear layers whose rows do not depend on one another, for rollout servers that compute in float32 on the CPU."""

from __future__ import annotations

from typing import Any


def wide_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Compute a float32 layer in float64, so that a row's result does not depend on how many rows there are.

    The CPU's float32 product picks its kernel by the number of rows, and a row then differs in the last bits. In
    float64 the same happens nine digits further right, where rounding back to float32 removes it.

    Args:
        x: (..., in).
        weight: (out, in).
        bias: (out,) or None.

    Returns:
        (..., out), dtype of ``x``.
    """
    import torch

    wide = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    return wide.to(x.dtype)


def widen(model: Any) -> int:
    """Let vLLM's float32 linear layers on the CPU compute in float64.

    Args:
        model: vLLM's model; its layers keep the product that they use in ``cpu_linear``, called with (x, weight, bias).

    Returns:
        how many layers were changed.
    """
    import torch

    changed = 0
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        fits = weight is not None and weight.device.type == "cpu" and weight.dtype == torch.float32
        if fits and callable(getattr(layer, "cpu_linear", None)):
            layer.cpu_linear = wide_linear
            changed += 1
    return changed
