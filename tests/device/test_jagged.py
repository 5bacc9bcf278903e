from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

torch_musa = pytest.importorskip("torch_musa", reason="neither torch_musa nor the simulator is installed")

from verl_musa.device import jagged  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    """The kernels are there for these tests only: others of this process look at a device without them."""
    kept = len(jagged._kept_libraries)
    jagged.register()
    yield
    while len(jagged._kept_libraries) > kept:
        jagged._kept_libraries.pop()._destroy()


def _rows(
    *lengths: int, width: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(length, *width, generator=generator) * 10).to(dtype) for length in lengths]


@pytest.mark.parametrize("width", [(), (3,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_padding_on_the_device_equals_the_cpu(width: tuple[int, ...], dtype: torch.dtype) -> None:
    rows = _rows(4, 1, 0, 6, width=width, dtype=dtype)
    on_cpu = torch.nested.as_nested_tensor(rows, layout=torch.jagged).to_padded_tensor(7)
    on_device = torch.nested.as_nested_tensor([row.to("musa") for row in rows], layout=torch.jagged)
    padded = on_device.to_padded_tensor(7)
    assert padded.device.type == "musa"
    assert torch.equal(padded.cpu(), on_cpu)


def test_gradients_equal_the_cpu() -> None:
    gradients = []
    for device in ("cpu", "musa"):
        leaves = [row.to(device).requires_grad_() for row in _rows(2, 5, 3, width=(2,))]
        padded = torch.nested.as_nested_tensor(leaves, layout=torch.jagged).to_padded_tensor(0.0)
        weights = torch.arange(padded.numel(), dtype=torch.float32).reshape(padded.shape).to(device)
        (padded * weights).sum().backward()
        gradients.append([leaf.grad.cpu() for leaf in leaves if leaf.grad is not None])
    assert len(gradients[0]) == 3
    for of_cpu, of_device in zip(*gradients, strict=True):
        assert torch.equal(of_cpu, of_device)


def test_there_and_back() -> None:
    values = torch.arange(10.0).reshape(5, 2)
    offsets = [torch.tensor([0, 2, 2, 5])]
    padded = jagged.to_padded(values, offsets, [4], -1.0)
    assert padded.shape == (3, 4, 2)
    assert torch.equal(jagged.to_jagged(padded, offsets), values)
    assert torch.equal(jagged.to_jagged(padded, offsets, 5), values)


def test_rows_longer_than_the_padding_are_cut() -> None:
    padded = jagged.to_padded(torch.arange(5.0), [torch.tensor([0, 3, 5])], [2])
    assert padded.tolist() == [[0.0, 1.0], [3.0, 4.0]]


def test_two_jagged_dimensions_are_refused() -> None:
    offsets = torch.tensor([0, 1])
    with pytest.raises(NotImplementedError, match="found 2 jagged dimensions"):
        jagged.to_padded(torch.ones(1), [offsets, offsets], [1, 1])


def test_nothing_is_registered_twice() -> None:
    assert jagged.register() == []
