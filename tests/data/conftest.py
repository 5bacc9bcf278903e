"""A whole small recipe on disk: model folder, prompts and reward function, each easy to break."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from verl_musa.data.subject import Subject
from verl_musa.recipe import Override, Site, load_recipe, resolve
from verl_musa.recipe.compose import base_config, selects_group

MakeRecipe = Callable[..., Path]

MODEL_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
TOKENIZER = {"model": {"vocab": {"a": 0, "b": 1, "c": 2}}, "added_tokens": [{"id": 3, "content": "<end>"}]}


def write_safetensors(file: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))


def row(**changes: Any) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": "1+1="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
        **changes,
    }


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), file)


@pytest.fixture
def folder(make_recipe: MakeRecipe) -> Path:
    """The folder of a recipe with nothing wrong."""
    recipe = make_recipe()
    model = recipe / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL_CONFIG), encoding="utf-8")
    (model / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    (model / "tokenizer_config.json").write_text('{"chat_template": "x"}', encoding="utf-8")
    write_safetensors(model / "model.safetensors")
    write_rows(recipe / "train.parquet", [row() for _ in range(16)])
    write_rows(recipe / "val.parquet", [row() for _ in range(4)])
    return recipe


Look = Callable[..., Subject]


@functools.cache
def _defaults(folder: Path, name: str, groups: tuple[str, ...]) -> str:
    return json.dumps(OmegaConf.to_container(base_config(folder, name, groups), resolve=False))


def _quick_compose(folder: Path, name: str, overrides: Sequence[Override]) -> dict[str, Any]:
    """verl's defaults with the overrides written into them: Hydra itself takes a second, and has its own tests."""
    groups = tuple(o.text for o in overrides if selects_group(folder, o))
    config: dict[str, Any] = json.loads(_defaults(folder, name, groups))
    for override in overrides:
        *outer, last = override.path.split(".")
        node = config
        for key in outer:
            node = node.setdefault(key, {})
        node[last] = override.value
    return config


@pytest.fixture
def look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """The subject of the checks, resolved as the files are at the time of the call."""
    monkeypatch.setattr("verl_musa.recipe.resolution.compose", _quick_compose)

    def subject(*sets: str, assets_ready: bool = True) -> Subject:
        run_dir = folder.parent.parent / "runs" / "r1"
        return Subject(
            resolve(load_recipe(str(folder)), run_dir=run_dir, site=Site(), sets=sets), assets_ready
        )

    return subject
