"""Random state per device, apart from the CPU's."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch
from torch.utils.checkpoint import checkpoint


def test_a_seed_repeats_and_leaves_the_cpu_alone() -> None:
    torch.manual_seed(3)
    cpu = torch.get_rng_state()
    first = [torch.rand(4, device="musa"), torch.randperm(5, device="musa"), torch.randn(3, device="musa")]
    dropped = torch.nn.functional.dropout(torch.ones(50, device="musa"), 0.5)
    noise = torch.nn.functional.rrelu(-torch.ones(5, device="musa"), training=True)
    assert torch.equal(torch.get_rng_state(), cpu)
    torch.manual_seed(3)
    again = [torch.rand(4, device="musa"), torch.randperm(5, device="musa"), torch.randn(3, device="musa")]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(torch.nn.functional.dropout(torch.ones(50, device="musa"), 0.5), dropped)
    assert torch.equal(torch.nn.functional.rrelu(-torch.ones(5, device="musa"), training=True), noise)
    assert not torch.equal(torch.rand(4, device="musa"), first[0])


def test_state_is_seed_and_offset() -> None:
    torch.musa.manual_seed(77)
    state = torch.musa.get_rng_state()
    assert (state.dtype, state.numel(), state.device.type) == (torch.uint8, 16, "cpu")
    assert state.view(torch.int64).tolist() == [77, 0]
    x = torch.rand(5, device="musa")
    assert torch.musa.get_rng_state().view(torch.int64).tolist() == [77, 8]  # multiples of four
    torch.musa.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="musa"), x)
    assert torch.musa.initial_seed() == 77


def test_devices_have_their_own_state() -> None:
    torch.musa.manual_seed_all(5)
    states = torch.musa.get_rng_state_all()
    a, b = torch.rand(3, device="musa:0"), torch.rand(3, device="musa:1")
    assert torch.equal(a.cpu(), b.cpu())
    torch.rand(3, device="musa:0")
    assert torch.equal(torch.musa.get_rng_state(1), torch.musa.default_generators[1].get_state())
    torch.musa.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="musa:0"), a)
    with torch.random.fork_rng(devices=[0], device_type="musa"):
        torch.rand(3, device="musa:0")
    assert torch.musa.get_rng_state(0).view(torch.int64)[1].item() == 4


def test_generators() -> None:
    generator = torch.Generator(device="musa:1").manual_seed(9)
    x = torch.randn(3, device="musa:1", generator=generator)
    assert torch.equal(torch.randn(3, device="musa:1", generator=generator.manual_seed(9)), x)
    assert generator.device == torch.device("musa:1")
    assert torch.Generator(device="musa").device.index == 0
    copy = torch.Generator(device="musa:1")
    copy.set_state(generator.get_state())
    assert torch.equal(
        torch.randint(9, (5,), device="musa:1", generator=copy),
        torch.randint(9, (5,), device="musa:1", generator=generator),
    )


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (torch.zeros(8, dtype=torch.uint8), RuntimeError),
        (torch.zeros(16), TypeError),
        (torch.tensor([0, 3]).view(torch.uint8), RuntimeError),
    ],
)
def test_a_bad_state_is_refused(state: torch.Tensor, error: type[Exception]) -> None:
    with pytest.raises(error):
        torch.musa.set_rng_state(state)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_restores_dropout(reentrant: bool) -> None:
    """Wrong where the runtime does not say that it is initialised: then no device RNG is saved."""
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)).musa()
    x = torch.ones(4, 8, device="musa", requires_grad=True)

    def gradients(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer.zero_grad()
        run().sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    plain = gradients(lambda: layer(x))
    saved = gradients(lambda: checkpoint(layer, x, use_reentrant=reentrant))
    assert torch.musa._initialized
    assert all(torch.equal(a, b) for a, b in zip(plain, saved, strict=True))
