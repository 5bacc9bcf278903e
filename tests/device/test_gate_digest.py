from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_musa.device import gate_digest


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.uint8])
def test_a_digest_changes_with_any_bit_and_with_the_order(dtype: torch.dtype) -> None:
    value = (tensor(6, 5) * 20).to(dtype)
    same = gate_digest.digest(value.clone())
    assert gate_digest.digest(value) == same
    assert len(same) == 32
    changed = value.clone()
    changed.view(-1)[17] += 1
    assert gate_digest.digest(changed) != same
    assert gate_digest.digest(value.flip(0)) != same
    assert gate_digest.digest(value.t().contiguous()) != same


def test_a_digest_does_not_depend_on_strides_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    value = tensor(64, 9)
    whole = gate_digest.digest(value)
    assert gate_digest.digest(value.t().contiguous().t()) == whole
    monkeypatch.setattr(gate_digest, "CHUNK", 7)
    assert gate_digest.digest(value) == whole
    assert gate_digest.digest(torch.tensor(2.5)) != gate_digest.digest(torch.tensor(-2.5))


def test_nan_and_signed_zero_count_by_their_bits() -> None:
    assert gate_digest.digest(torch.tensor([float("nan")])) == gate_digest.digest(
        torch.tensor([float("nan")])
    )
    assert gate_digest.digest(torch.tensor([0.0])) != gate_digest.digest(torch.tensor([-0.0]))


def test_one_rank_holds_all_and_several_hold_parts() -> None:
    value = tensor(8, 4)
    assert [len(parts) for parts in gate_digest.cuts(value, 1)] == [1]
    by_rank = gate_digest.cuts(value, 4)
    # Whole, halves and quarters of rows and of columns.
    assert [len(parts) for parts in by_rank] == [5, 5, 5, 5]
    assert any(torch.equal(part, value[2:4]) for part in by_rank[1])
    assert any(torch.equal(part, value[:, 3:]) for part in by_rank[3])
    # Two key/value heads on four ranks: ranks 0 and 1 hold the first.
    assert any(torch.equal(part, value[:4]) for part in by_rank[1])
    assert not any(torch.equal(part, value[:4]) for part in by_rank[2])


def test_what_does_not_divide_is_not_cut() -> None:
    assert [len(parts) for parts in gate_digest.cuts(tensor(5, 3), 2)] == [1, 1]


def test_expected_texts_cover_the_trainers_dtype_and_the_rollouts() -> None:
    value = tensor(4, 4)
    ((own, low),) = gate_digest.expected(value, ["bfloat16"], 1)[:1]
    assert {own.split("|")[0], low.split("|")[0]} == {"float32", "bfloat16"}
    assert gate_digest.describe(value.bfloat16()) in (own, low)
    assert len(gate_digest.expected(torch.arange(4), ["bfloat16"], 1)[0]) == 1


class Model:
    """Looks like a rollout engine's model: named modules and parameters."""

    def __init__(self) -> None:
        self.parameters = {
            "model.embed_tokens.weight": tensor(10, 4, seed=1),
            "model.layers.0.self_attn.qkv_proj.weight": tensor(4 * 2 + 2 * 2 + 2 * 2, 4, seed=2),
            "model.layers.0.self_attn.qkv_proj.bias": tensor(16, seed=3),
            "model.layers.0.mlp.gate_up_proj.weight": tensor(12, 4, seed=4),
            "model.layers.1.mlp.experts.w13_weight": tensor(3, 6, 4, seed=5),
            "model.layers.1.mlp.experts.w2_weight": tensor(3, 4, 3, seed=6),
        }
        self.modules = {
            "model.layers.0.self_attn.qkv_proj": SimpleNamespace(num_heads=4, num_kv_heads=2, head_size=2),
            "model.layers.1.mlp.experts": SimpleNamespace(moe_ep_rank=1),
        }

    def named_modules(self) -> Any:
        return iter(self.modules.items())

    def named_parameters(self) -> Any:
        return ((name, torch.nn.Parameter(value)) for name, value in self.parameters.items())


def test_fused_parameters_are_taken_apart_under_hugging_faces_names() -> None:
    model = Model()
    found = dict(gate_digest.pieces(model))
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    fused = model.parameters[f"{attention}.qkv_proj.weight"]
    assert torch.equal(found[f"{attention}.q_proj.weight"], fused[:8])
    assert torch.equal(found[f"{attention}.k_proj.weight"], fused[8:12])
    assert torch.equal(found[f"{attention}.v_proj.weight"], fused[12:])
    assert found[f"{attention}.v_proj.bias"].shape == (4,)
    assert torch.equal(found[f"{mlp}.up_proj.weight"], model.parameters[f"{mlp}.gate_up_proj.weight"][6:])
    # The second rank of two: its three experts are numbers 3 to 5.
    experts = model.parameters["model.layers.1.mlp.experts.w13_weight"]
    assert torch.equal(found["model.layers.1.mlp.experts.4.gate_proj.weight"], experts[1, :3])
    assert torch.equal(found["model.layers.1.mlp.experts.4.up_proj.weight"], experts[1, 3:])
    assert found["model.layers.1.mlp.experts.5.down_proj.weight"].shape == (4, 3)
    assert "model.embed_tokens.weight" in found
    assert gate_digest.digests(model)["model.embed_tokens.weight"].startswith("float32|10x4|")


def test_experts_of_vllm_lie_one_module_deeper() -> None:
    model = Model()
    owner = "model.layers.1.mlp.experts"
    model.parameters = {f"{owner}.routed_experts.w2_weight": tensor(3, 4, 3, seed=6)}
    for rank, first in ((0, 0), (1, 3)):
        model.modules = {f"{owner}.routed_experts": SimpleNamespace(moe_config=SimpleNamespace(ep_rank=rank))}
        assert list(dict(gate_digest.pieces(model))) == [
            f"{owner}.{number}.down_proj.weight" for number in range(first, first + 3)
        ]
