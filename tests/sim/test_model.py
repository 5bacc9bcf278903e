"""Whole models on musa equal CPU bit for bit: modules, attention, optimizers, and a tiny Qwen3 that trains."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch
from torch import nn
from torch.nn import functional


@pytest.fixture(autouse=True)
def _seed() -> None:
    # No torch.set_num_threads here or in any test of this process: backward on musa runs in a thread of its own, which
    # keeps the count that held when it was made, and another count sums in another order.
    torch.manual_seed(0)


def _same(cpu: Any, musa: Any) -> None:
    for a, b in zip(cpu, musa, strict=True):
        if a is None:
            assert b is None
            continue
        assert b.device.type == "musa"
        assert torch.equal(a, b.cpu())


SEQUENCE = (5, 3, 8)
IMAGE = (2, 4, 9, 9)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(8, 4), SEQUENCE),
        (lambda: nn.Conv1d(3, 6, 3), SEQUENCE),
        (lambda: nn.Conv2d(4, 8, 3, groups=2, padding=1), IMAGE),
        (lambda: nn.ConvTranspose2d(4, 2, 3, stride=2), IMAGE),
        (lambda: nn.Conv3d(4, 2, 3), (1, 4, 5, 5, 5)),
        (lambda: nn.BatchNorm2d(4), IMAGE),
        (lambda: nn.GroupNorm(2, 4), IMAGE),
        (lambda: nn.LayerNorm(8), SEQUENCE),
        (lambda: nn.RMSNorm(8), SEQUENCE),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), SEQUENCE),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0).bfloat16(), SEQUENCE),
    ],
)
def test_modules(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    module = make()
    other = copy.deepcopy(module).musa()
    x = torch.randn(shape).to(next(module.parameters()).dtype).requires_grad_()
    y = x.detach().musa().requires_grad_()
    outs = module(x), other(y)
    for out in outs:
        out.float().pow(2).sum().backward()
    _same([outs[0], x.grad], [outs[1], y.grad])
    _same([p.grad for p in module.parameters()], [p.grad for p in other.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention(dtype: torch.dtype, grouped: bool, mask: str) -> None:
    heads = 2 if grouped else 4
    shapes = ((2, 4, 8, 16), (2, heads, 8, 16), (2, heads, 8, 16))
    cpu = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    musa = [t.detach().musa().requires_grad_() for t in cpu]
    masks: dict[str, torch.Tensor | None] = {
        "bool": torch.rand(2, 1, 8, 8) > 0.3,
        "float": torch.randn(2, 1, 8, 8).to(dtype),
    }
    attn_mask = masks.get(mask)
    outs = []
    for inputs in (cpu, musa):
        moved = None if attn_mask is None else attn_mask.to(inputs[0].device)
        out = functional.scaled_dot_product_attention(
            *inputs, attn_mask=moved, is_causal=mask == "causal", enable_gqa=grouped
        )
        out.float().pow(3).sum().backward()
        outs.append(out)
    _same([outs[0], *(t.grad for t in cpu)], [outs[1], *(t.grad for t in musa)])
    assert "Overrideable" in outs[1].grad_fn.name(), "the math path was taken"


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.AdamW, {"foreach": False}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
    ],
)
def test_optimizers(optimizer: Any, options: dict[str, Any]) -> None:
    models = [nn.Linear(8, 8)]
    models.append(copy.deepcopy(models[0]).musa())
    optimizers = [optimizer(model.parameters(), lr=0.1, **options) for model in models]
    for _ in range(3):
        x = torch.randn(4, 8)
        for model, step in zip(models, optimizers, strict=True):
            step.zero_grad()
            model(x.to(next(model.parameters()).device)).pow(2).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            step.step()
    _same(models[0].parameters(), models[1].parameters())


def _tiny_qwen3(implementation: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own imports
        from transformers import Qwen3Config, Qwen3ForCausalLM

        config = Qwen3Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            attn_implementation=implementation,
        )
        return Qwen3ForCausalLM(config)


def _train(model: Any, tokens: torch.Tensor, steps: int) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_qwen3_trains_as_on_the_cpu(implementation: str, dtype: torch.dtype) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed in this environment")
    cpu = _tiny_qwen3(implementation).to(dtype)
    musa = copy.deepcopy(cpu).to("musa")
    tokens = torch.randint(64, (2, 12))
    expected = _train(cpu, tokens, 3)
    _same(expected, _train(musa, tokens.musa(), 3))
    _same(cpu.parameters(), musa.parameters())
    assert expected[-1] < expected[0]
