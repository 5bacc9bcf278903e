"""The mapping on paper: every row of every tensor has exactly one place, also for the real models' sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_musa.checkpoint.layout import Layout, check_layout
from verl_musa.checkpoint.mapping import (
    LAYER_SPECS,
    Part,
    Target,
    extra_state_keys,
    mapped_tensors,
    mcore_shapes,
    zero_boxes,
)
from verl_musa.checkpoint.pieces import split
from verl_musa.checkpoint.spec import ModelSpec, spec_from_config


def require_tiling(spec: ModelSpec, target: Target) -> tuple[int, int]:
    """Check that the parts cover both sides exactly once, on the meta device, and return (tensors, numbers)."""
    shapes = mcore_shapes(spec, target)
    whole = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    boxes: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = defaultdict(list)
    covered: dict[str, int] = defaultdict(int)
    names, numbers = set(), 0

    def place(part: Part, columns: tuple[int, ...]) -> None:
        box = whole[part.key]
        for axis, (start, size) in enumerate(zip(part.offset, part.sizes, strict=True)):
            box = box.narrow(axis, start, size)  # raises where it would leave the tensor
        assert box.numel() == (part.stop - part.start) * math.prod(columns)
        axis = len(shapes[part.key]) - 1 - len(columns)
        assert all(size == 1 for size in part.sizes[:axis])
        assert part.sizes[axis + 1 :] == columns == shapes[part.key][axis + 1 :]
        boxes[part.key, part.offset[:axis]].append((part.offset[axis], part.offset[axis] + part.sizes[axis]))
        covered[part.key] += box.numel()

    for tensor in mapped_tensors(spec, target):
        assert tensor.name not in names
        names.add(tensor.name)
        numbers += math.prod(tensor.shape)
        assert [part.start for part in tensor.parts] == [0, *(part.stop for part in tensor.parts[:-1])]
        assert tensor.parts[-1].stop == tensor.shape[0]
        for part in tensor.parts:
            place(part, tensor.shape[1:])
    for part in zero_boxes(spec, target):
        place(part, shapes[part.key][1:])
    for (key, leading), spans in boxes.items():
        axis = len(leading)
        spans.sort()
        assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])], key
        assert spans[-1][1] == shapes[key][axis], key
    assert covered == {key: math.prod(shape) for key, shape in shapes.items()}
    return len(names), numbers


@pytest.mark.parametrize("layer_spec", LAYER_SPECS)
@pytest.mark.parametrize("kind", ["dense", "tied", "moe", "critic"])
def test_every_row_has_one_place(configs: dict[str, Any], kind: str, layer_spec: str) -> None:
    spec = spec_from_config(configs[kind], "config.json")
    require_tiling(spec, Target(layer_spec, spec.vocab))
    require_tiling(spec, Target(layer_spec, 64))
    require_tiling(spec, Target(layer_spec, 64, value_head=True))


@given(
    layers=st.integers(1, 3),
    groups=st.integers(1, 4),
    queries=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    hidden=st.integers(1, 7),
    ffn=st.integers(1, 6),
    vocab=st.integers(1, 9),
    extra=st.integers(0, 5),
    experts=st.integers(0, 3),
    tied=st.booleans(),
)
def test_any_sizes(
    *, layers: int, groups: int, queries: int, head_dim: int, hidden: int, ffn: int, vocab: int,
    extra: int, experts: int, tied: bool,
) -> None:  # fmt: skip
    spec = ModelSpec(
        architecture="Qwen3MoeForCausalLM" if experts else "Qwen3ForCausalLM",
        hidden=hidden,
        layers=layers,
        heads=groups * queries,
        groups=groups,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        tied=tied,
        experts=experts,
        expert_ffn=ffn if experts else 0,
    )
    require_tiling(spec, Target("te", vocab + extra))


@pytest.mark.parametrize(
    ("model", "tensors", "parameters", "layouts"),
    [
        (
            "Qwen3-8B",
            399,
            8_190_735_360,
            (Layout(tp=4, world=8), Layout(tp=8, world=8), Layout(tp=4, pp=2, world=8)),
        ),
        (
            "Qwen3-30B-A3B",
            18_867,
            30_532_122_624,
            (Layout(tp=4, ep=8, etp=1, world=32), Layout(tp=4, pp=2, ep=8, etp=1, world=32)),
        ),
    ],
)
@pytest.mark.parametrize("layer_spec", LAYER_SPECS)
def test_the_real_models(
    real_configs: dict[str, Any],
    model: str,
    *,
    tensors: int,
    parameters: int,
    layouts: tuple[Layout, ...],
    layer_spec: str,
) -> None:
    spec = spec_from_config(real_configs[model], "config.json")
    assert require_tiling(spec, Target(layer_spec, spec.vocab)) == (tensors, parameters)
    for layout in layouts:
        check_layout(spec, layout, spec.vocab, "recipe.yaml")


def test_names_that_depend_on_the_layer_spec(configs: dict[str, Any]) -> None:
    spec = spec_from_config(configs["moe"], "config.json")
    te, local = (set(mcore_shapes(spec, Target(name, spec.vocab))) for name in LAYER_SPECS)
    assert te - local == {"decoder.layers.pre_mlp_layernorm.weight"}
    assert local - te == {"decoder.layers.mlp.linear_fc1.layer_norm_weight"}
    dense = spec_from_config(configs["dense"], "config.json")
    assert mcore_shapes(dense, Target("te", 50)) == mcore_shapes(dense, Target("local", 50))


def test_objects_of_the_local_layers_are_among_those_of_te(configs: dict[str, Any]) -> None:
    for kind, count in (("dense", 2 * 4), ("moe", 2 * (2 + 4 * 2))):
        spec = spec_from_config(configs[kind], "config.json")
        te, local = (list(extra_state_keys(spec, Target(name, spec.vocab))) for name in LAYER_SPECS)
        assert len(local) == len(set(local)) == count
        assert set(local) < set(te)
        assert len(te) == len(set(te))
    assert "decoder.layers.mlp.experts.experts.linear_fc2._extra_state/shard_1.3_2.4" in local
    assert "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2" in local


def test_long_parts_are_cut_into_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_musa.checkpoint.pieces.PIECE_BYTES", 100)
    part = Part(10, 35, "key", (1, 40, 0), (1, 25, 4))
    found = split(part, 10)
    assert [(p.start, p.stop, p.offset, p.sizes) for p in found] == [
        (10, 20, (1, 40, 0), (1, 10, 4)),
        (20, 30, (1, 50, 0), (1, 10, 4)),
        (30, 35, (1, 60, 0), (1, 5, 4)),
    ]
    assert split(part, 4) == [part]
    assert len(split(part, 1000)) == 25
