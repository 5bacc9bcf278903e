from __future__ import annotations

from typing import Any

import pytest

from verl_musa.checkpoint.layout import Layout, check_layout
from verl_musa.checkpoint.spec import spec_from_config
from verl_musa.errors import CheckpointError


def check(config: dict[str, Any], vocab_rows: int = 64, **sizes: int) -> None:
    check_layout(spec_from_config(config, "config.json"), Layout(**sizes), vocab_rows, "recipe.yaml")


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("dense", {}),
        ("dense", {"tp": 4, "pp": 2, "world": 16}),
        ("moe", {"tp": 2, "pp": 2, "ep": 2, "etp": 1, "world": 4}),
        ("moe", {"tp": 4, "ep": 4, "etp": 1, "cp": 2, "world": 8}),
    ],
)
def test_layouts_that_work(configs: dict[str, Any], kind: str, sizes: dict[str, int]) -> None:
    check(configs[kind], **sizes)


@pytest.mark.parametrize(
    ("kind", "sizes", "found", "fix"),
    [
        ("dense", {"tp": 3}, "num_attention_heads 4 is not divisible by TP 3", "choose TP from 1, 2, 4"),
        ("dense", {"tp": 8}, "num_attention_heads 4 is not divisible by TP 8", "choose TP from 1, 2, 4"),
        ("dense", {"pp": 3}, "num_hidden_layers 2 is not divisible by PP 3", "choose PP from 1, 2"),
        ("dense", {"ep": 2}, "the model has no experts", "leave EP at 1"),
        ("dense", {"tp": 2, "world": 3}, "3 is not divisible by TP x PP x CP 2", "use more devices"),
        ("moe", {"ep": 3}, "num_experts 4 is not divisible by EP 3", "choose EP from 1, 2, 4"),
        ("moe", {"tp": 2, "etp": 5}, "moe_intermediate_size 12 is not divisible by ETP 5", "choose ETP from"),
        ("moe", {"ep": 4, "etp": 1, "world": 2}, "2 is not divisible by ETP x EP x PP 4", "use more devices"),
    ],
)
def test_each_division(
    configs: dict[str, Any], kind: str, sizes: dict[str, int], found: str, fix: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        check(configs[kind], **sizes)
    assert found in str(caught.value.found)
    assert fix in str(caught.value.fix)


def test_an_odd_vocabulary_must_be_padded(configs: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="--pad-vocab 128"):
        check(configs["dense"], vocab_rows=50, tp=4)
    with pytest.raises(CheckpointError, match="--pad-vocab 384"):
        check(configs["dense"], vocab_rows=50, tp=3)


def test_all_problems_are_named_at_once(configs: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="cannot run under TP3 PP5 EP3") as caught:
        check(configs["moe"], tp=3, pp=5, ep=3)
    assert str(caught.value.found).count(";") >= 4


def test_the_name_of_a_layout() -> None:
    assert str(Layout()) == "TP1"
    assert str(Layout(tp=2, cp=4)) == "TP2 CP4"
