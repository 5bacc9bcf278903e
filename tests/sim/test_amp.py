"""Autocast and gradient scaling."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch
from torch.nn import functional


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lowers_matmul_and_keeps_reductions(dtype: torch.dtype) -> None:
    x = torch.randn(4, 4, device="musa")
    with torch.autocast("musa", dtype=dtype):
        y = x @ x
        assert y.dtype == dtype
        assert torch.softmax(y, -1).dtype == torch.float32
        assert functional.layer_norm(y, (4,)).dtype == torch.float32
        assert (y + x).dtype == torch.float32
        with torch.autocast("musa", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32
    assert torch.equal(y.cpu(), x.cpu().to(dtype) @ x.cpu().to(dtype))


def test_autocast_of_another_device_changes_nothing() -> None:
    x = torch.randn(4, 4, device="musa")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32
        assert (x.cpu() @ x.cpu()).dtype == torch.bfloat16


def test_names_of_the_amp_module() -> None:
    x = torch.randn(4, 4, device="musa")
    with torch.musa.amp.autocast():
        assert (x @ x).dtype == torch.float16
    assert torch.bfloat16 in torch.musa.get_amp_supported_dtype()
    assert not torch.musa.amp.amp_definitely_not_available()


def test_a_loss_that_is_unstable_in_half_precision_is_refused() -> None:
    x = torch.rand(3, device="musa")
    with torch.autocast("musa"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(x, x)


@pytest.mark.parametrize("make", [lambda: torch.amp.GradScaler("musa"), torch.musa.amp.GradScaler])
def test_the_scaler_skips_steps_with_infinities(make: object) -> None:
    weight = torch.ones(2, device="musa", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = make()  # type: ignore[operator]
    scaler.scale((weight * torch.tensor([1.0, float("inf")], device="musa")).sum()).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == before / 2
    optimizer.zero_grad()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    assert weight.tolist() == [0.0, 0.0]
