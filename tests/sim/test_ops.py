"""Every op that PyTorch's own operator database describes, forward and backward, equals CPU bit for bit on musa.

The first samples of each op and dtype run on both sides with the same bytes and strides. Budget: under a minute.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch
from torch.utils import _pytree
from torch_musa import _C

with warnings.catch_warnings():
    # PyTorch's test library warns about optional packages; its operator database is all that is wanted here.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
SAMPLES = 4
# What ran when this was written, less a small allowance for other CPUs: the sweep must not shrink unseen.
LEAST_OPS = 560
LEAST_SAMPLES = 7500
LEAST_GRADIENTS = 3100

RANDOM = "draws random numbers: device and CPU have separate generators by design"
MEMORY = "returns uninitialised memory"
EXCLUDED = {
    **dict.fromkeys(
        (
            *(
                "bernoulli",
                "cauchy",
                "exponential",
                "geometric",
                "log_normal",
                "multinomial",
                "normal",
                "uniform",
            ),
            *("rand_like", "randint", "randint_like", "randn", "randn_like"),
            *("nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d"),
            *("nn.functional.dropout3d", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu"),
            *("nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"),
            *("pca_lowrank", "svd_lowrank"),
        ),
        RANDOM,
    ),
    "nn.functional.multi_head_attention_forward": f"its samples use dropout, which {RANDOM}",
    **dict.fromkeys(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"), MEMORY
    ),
    "linalg.lstsq": "two runs on the same CPU differ (LAPACK driver, rank-deficient samples)",
    "nn.functional.linear_cross_entropy": "PyTorch picks 'accurate' chunks on CPU and 'compact' ones elsewhere",
    **dict.fromkeys(
        (
            *("jiterator_unary", "jiterator_binary", "jiterator_4inputs_with_extra_args"),
            *("jiterator_2inputs_2outputs", "jiterator_binary_return_by_ref"),
        ),
        "compiles CUDA source",
    ),
    "tensor_split": "wants its indices on the CPU, on every device (asserted in test_core)",
    "to": "its samples name the CPU as target",
    "to_sparse": "the simulated device holds strided tensors only (asserted in test_core)",
}


class Tally:
    """What the sweep ran in this process."""

    ops: set[str] = set()  # noqa: RUF012 (one tally a process)
    samples = 0
    gradients = 0


def _copy(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A leaf with the same bytes, strides and bits on ``device``, through a copy of the whole storage."""
    plain = tensor.detach()
    memory = plain.untyped_storage().clone()
    copy = torch.empty(0, dtype=plain.dtype).set_(memory, plain.storage_offset(), plain.shape, plain.stride())
    if device == "musa":
        copy = _C.musa_alias(copy, 0)
    copy = copy.conj() if plain.is_conj() else copy
    copy = torch._neg_view(copy) if plain.is_neg() else copy
    return copy.requires_grad_(tensor.requires_grad)


def _to(value: Any, device: str) -> Any:
    def move(item: Any) -> Any:
        return _copy(item, device) if isinstance(item, torch.Tensor) else item

    moved = _pytree.tree_map(move, value)
    if isinstance(moved, dict) and "device" in moved:
        moved["device"] = device
    return moved


def _tensors(value: Any) -> list[torch.Tensor]:
    return [item for item in _pytree.tree_leaves(value) if isinstance(item, torch.Tensor)]


def _run(op: Any, sample: Any, device: str) -> tuple[Any, Any]:
    """(outputs, gradients) of one sample; gradients flow back from fixed random cotangents."""
    first, args, kwargs = (_to(part, device) for part in (sample.input, sample.args, sample.kwargs))
    out = op(first, *args, **kwargs)
    leaves = [t for t in _tensors((first, args, kwargs)) if t.requires_grad]
    outs = [t for t in _tensors(sample.output_process_fn_grad(out)) if t.requires_grad]
    if not leaves or not outs:
        return out, None
    cotangents = []
    for number, tensor in enumerate(outs):
        generator = torch.Generator().manual_seed(number)
        value = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
        cotangents.append(value.to(tensor.device))
    return out, torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return torch.view_as_real(plain) if plain.is_complex() else plain


def _difference(cpu: Any, musa: Any) -> str | None:
    """How two trees of results differ, or ``None``. NaN equals NaN; everything else must be equal exactly."""
    left, right = _pytree.tree_leaves(cpu), _pytree.tree_leaves(musa)
    if len(left) != len(right):
        return f"{len(left)} results on CPU, {len(right)} on musa"
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            if a != b and a == a:  # noqa: PLR0124 (NaN)
                return f"{a!r} on CPU, {b!r} on musa"
            continue
        if b.device.type != "musa":
            return f"the result is on {b.device}"
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{a.dtype}{list(a.shape)} on CPU, {b.dtype}{list(b.shape)} on musa"
        x, y = _bits(a), _bits(b)
        equal = (x == y) | ((x != x) & (y != y))  # noqa: PLR0124 (NaN)
        if not bool(equal.all()):
            return f"{int((~equal).sum())} of {equal.numel()} values differ"
    return None


def _uses_dropout(sample: Any) -> bool:
    return bool(sample.kwargs.get("dropout_p", 0.0))


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    gradient = (
        op.supports_autograd and dtype.is_floating_point and dtype in op.supported_backward_dtypes("cpu")
    )
    torch.manual_seed(0)
    # Not op.sample_inputs(), which searches the whole call stack for a unittest and takes four times as long.
    return itertools.islice(op.sample_inputs_func(op, "cpu", dtype, gradient), SAMPLES)


def _sweep_op(op: Any) -> list[str]:
    """Runs an op's samples; returns what differed. Samples that CPU itself refuses are not counted."""
    name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
    bad = []
    for dtype in (dtype for dtype in DTYPES if dtype in op.supported_dtypes("cpu")):
        for number, sample in enumerate(_samples(op, dtype)):
            if _uses_dropout(sample):
                continue
            try:
                expected = _run(op, sample, "cpu")
            except (RuntimeError, NotImplementedError):
                continue
            found = _run(op, sample, "musa")
            for what, cpu, musa in zip(("forward", "backward"), expected, found, strict=True):
                difference = _difference(cpu, musa)
                if difference is not None:
                    bad.append(f"{name} {dtype} sample {number} {what}: {difference}")
            Tally.ops.add(op.name)
            Tally.samples += 1
            Tally.gradients += expected[1] is not None
    return bad


def test_every_op_equals_cpu_bit_for_bit() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples exercise deprecated forms on purpose
        bad = [line for op in op_db if op.name not in EXCLUDED for line in _sweep_op(op)]
    # The figures of docs/simulator.md: pytest shows them with -rP, or when an assertion below fails.
    sys.stdout.write(f"{len(Tally.ops)} ops, {Tally.samples} samples, {Tally.gradients} with gradients\n")
    assert not bad, "\n".join(bad)
    assert len(Tally.ops) >= LEAST_OPS
    assert Tally.samples >= LEAST_SAMPLES
    assert Tally.gradients >= LEAST_GRADIENTS


def test_every_exclusion_names_an_op() -> None:
    assert set(EXCLUDED) <= {op.name for op in op_db}
