"""Tiny Qwen3 models on disk, written without transformers, and what Megatron-Core would hold for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from verl_musa.checkpoint.mapping import Target, mapped_tensors
from verl_musa.checkpoint.spec import spec_from_config

MakeModel = Callable[..., Path]

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": 50,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "attention_bias": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "tied": {**DENSE, "tie_word_embeddings": True},
    "moe": {
        **DENSE,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "critic": {**DENSE, "architectures": ["Qwen3ForTokenClassification"], "id2label": {"0": "value"}},
}


# Facts from the models' own config.json files.
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
}


def hf_tensors(config: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """Random tensors with the model's names and shapes."""
    spec = spec_from_config(config, "config.json")
    generator = torch.Generator().manual_seed(7)
    return {
        tensor.name: torch.randn(tensor.shape, generator=generator).to(dtype)
        for tensor in mapped_tensors(spec, Target("te", spec.vocab))
    }


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Any], *, shards: int = 1) -> Path:
    """Write a model folder with its weights in ``shards`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "generation_config.json").write_text("{}", encoding="utf-8")
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(tensors)
    size = -(-len(names) // shards)
    placed = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[number * size : (number + 1) * size]}
        save_file(part, folder / file, metadata={"format": "pt"})
        placed.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Writes a tiny model and returns its folder.

    Arguments: ``kind`` (of CONFIGS); ``shards``; ``dtype``; ``config`` (changes of config.json alone, so that it no
    longer fits); ``edit`` (called with the tensors before they are written).
    """

    def make(
        kind: str = "dense",
        *,
        shards: int = 2,
        dtype: Any = torch.bfloat16,
        config: dict[str, Any] | None = None,
        edit: Callable[[dict[str, Any]], object] = lambda _tensors: None,
        name: str = "model",
    ) -> Path:
        tensors = hf_tensors(CONFIGS[kind], dtype)
        edit(tensors)
        return write_model(tmp_path / name, {**CONFIGS[kind], **(config or {})}, tensors, shards=shards)

    return make


@pytest.fixture
def configs() -> dict[str, dict[str, Any]]:
    """A config.json of each kind."""
    return CONFIGS


@pytest.fixture
def real_configs() -> dict[str, dict[str, Any]]:
    """What the config.json files of the two recipes' models say, as far as it fixes names and shapes."""
    return {"Qwen3-8B": QWEN3_8B, "Qwen3-30B-A3B": QWEN3_30B_A3B}


@pytest.fixture
def hf_of() -> Callable[[str], dict[str, Any]]:
    """The tensors of a kind, as :func:`make_model` writes them (bfloat16)."""
    return lambda kind: hf_tensors(CONFIGS[kind], torch.bfloat16)


@pytest.fixture
def mcore_of() -> Callable[[str], dict[str, Any]]:
    """What Megatron-Core holds for a kind."""
    return lambda kind: megatron_tensors(CONFIGS[kind], hf_tensors(CONFIGS[kind], torch.bfloat16))


def megatron_tensors(config: dict[str, Any], hf: dict[str, Any]) -> dict[str, Any]:
    """What Megatron-Core holds, built the plain way: whole tensors, concatenated and stacked.

    A second derivation, from the documented layouts: fused query-key-value by query group, gate before up.
    """
    layers, groups, width = (
        config["num_hidden_layers"],
        config["num_key_value_heads"],
        config["head_dim"],
    )

    def stacked(name: str) -> Any:
        return torch.stack([hf[f"model.layers.{layer}.{name}"] for layer in range(layers)])

    def qkv(layer: int) -> Any:
        start = f"model.layers.{layer}.self_attn."
        query, key, value = (hf[f"{start}{name}_proj.weight"] for name in "qkv")
        per_group = query.shape[0] // groups
        rows = []
        for group in range(groups):
            rows += [
                query[group * per_group : (group + 1) * per_group],
                key[group * width : (group + 1) * width],
                value[group * width : (group + 1) * width],
            ]
        return torch.cat(rows)

    def fc1(start: str) -> Any:
        return torch.cat([hf[f"{start}gate_proj.weight"], hf[f"{start}up_proj.weight"]])

    found = {
        "embedding.word_embeddings.weight": hf["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": hf["model.norm.weight"],
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight": stacked("input_layernorm.weight"),
        "decoder.layers.self_attention.linear_qkv.weight": torch.stack([qkv(i) for i in range(layers)]),
        "decoder.layers.self_attention.q_layernorm.weight": stacked("self_attn.q_norm.weight"),
        "decoder.layers.self_attention.k_layernorm.weight": stacked("self_attn.k_norm.weight"),
        "decoder.layers.self_attention.linear_proj.weight": stacked("self_attn.o_proj.weight"),
    }
    norm = stacked("post_attention_layernorm.weight")
    if "num_experts" in config:
        experts = range(config["num_experts"])
        starts = [[f"model.layers.{i}.mlp.experts.{e}." for e in experts] for i in range(layers)]
        key = "decoder.layers.mlp.experts.experts."
        found |= {
            "decoder.layers.pre_mlp_layernorm.weight": norm,
            "decoder.layers.mlp.router.weight": stacked("mlp.gate.weight"),
            f"{key}linear_fc1.weight": torch.stack([torch.stack([fc1(s) for s in row]) for row in starts]),
            f"{key}linear_fc2.weight": torch.stack(
                [torch.stack([hf[f"{s}down_proj.weight"] for s in row]) for row in starts]
            ),
        }
    else:
        found |= {
            "decoder.layers.mlp.linear_fc1.layer_norm_weight": norm,
            "decoder.layers.mlp.linear_fc1.weight": torch.stack(
                [fc1(f"model.layers.{i}.mlp.") for i in range(layers)]
            ),
            "decoder.layers.mlp.linear_fc2.weight": stacked("mlp.down_proj.weight"),
        }
    head = hf.get("lm_head.weight", hf.get("score.weight"))
    if head is not None:
        found["output_layer.weight"] = head
    if "score.bias" in hf:
        found["output_layer.bias"] = hf["score.bias"]
    return found
