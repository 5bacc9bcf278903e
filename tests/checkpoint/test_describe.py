from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.checkpoint import ToMcore, describe, to_mcore
from verl_musa.errors import CheckpointError

MakeModel = Callable[..., Path]


def test_a_model_folder(make_model: MakeModel) -> None:
    found = describe(make_model("moe", shards=2))
    assert found["kind"] == "Hugging Face"
    assert found["model"]["experts"] == 4
    assert found["files"] == 2
    assert {"name": "model.norm.weight", "dtype": "BF16", "shape": [16], "boxes": 1} in found["tensors"]
    assert found["manifest"] is None


def test_a_checkpoint(make_model: MakeModel) -> None:
    source = make_model("moe", shards=2)
    found = describe(to_mcore(ToMcore(source=source, output=source.with_name("out"))))
    assert found["kind"] == "Megatron-Core torch_dist"
    assert found["model"]["experts"] == 4
    assert found["files"] == 5
    fc2 = {
        "name": "decoder.layers.mlp.experts.experts.linear_fc2.weight",
        "dtype": "bfloat16",
        "shape": [2, 4, 16, 12],
        "boxes": 8,
    }
    assert fc2 in found["tensors"]
    assert found["manifest"]["direction"] == "to-mcore"


def test_a_checkpoint_without_a_config(make_model: MakeModel) -> None:
    source = make_model("dense")
    folder = to_mcore(ToMcore(source=source, output=source.with_name("out")))
    (folder / "huggingface" / "config.json").unlink()
    assert describe(folder)["model"] is None


def test_anything_else(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither a Hugging Face folder nor"):
        describe(tmp_path)
