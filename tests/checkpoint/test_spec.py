from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_musa.checkpoint.spec import read_spec, spec_from_config
from verl_musa.errors import CheckpointError

Configs = dict[str, dict[str, Any]]


def test_every_number_is_read(configs: Configs) -> None:
    spec = spec_from_config(configs["moe"], "config.json")
    assert (spec.hidden, spec.layers, spec.heads, spec.groups, spec.head_dim) == (16, 2, 4, 2, 8)
    assert (spec.vocab, spec.tied, spec.experts, spec.expert_ffn, spec.topk) == (50, False, 4, 12, 2)
    assert spec.qkv_rows == 64
    assert spec.heads_per_group == 2


def test_what_newer_configs_write_elsewhere(configs: Configs) -> None:
    config = {**configs["moe"], "rope_parameters": {"rope_theta": 5e5}, "num_local_experts": 6}
    del config["num_experts"], config["rope_theta"]
    spec = spec_from_config(config, "config.json")
    assert spec.experts == 6
    assert spec.rope_theta == 5e5


def test_absent_numbers_have_the_architecture_s_defaults(configs: Configs) -> None:
    config = {**configs["dense"], "head_dim": None}
    del config["num_key_value_heads"], config["tie_word_embeddings"]
    spec = spec_from_config(config, "config.json")
    assert spec.head_dim == 16 // 4
    assert spec.groups == spec.heads
    assert not spec.tied


def test_a_value_model_has_labels_and_is_never_tied(configs: Configs) -> None:
    config = {**configs["critic"], "tie_word_embeddings": True}
    spec = spec_from_config(config, "config.json")
    assert spec.labels == 1
    assert not spec.tied
    del config["id2label"]
    assert spec_from_config(config, "config.json").labels == 2
    assert spec_from_config({**config, "num_labels": 3}, "config.json").labels == 3


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("dense", {"architectures": ["LlamaForCausalLM"]}, "this architecture cannot be converted"),
        ("dense", {"architectures": None}, "this architecture cannot be converted"),
        ("dense", {"hidden_size": "16"}, "hidden_size must be a positive integer"),
        ("dense", {"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer"),
        ("dense", {"num_key_value_heads": 3}, "cannot be shared evenly"),
        ("dense", {"attention_bias": True}, "attention_bias has no mapping"),
        ("dense", {"quantization_config": {"bits": 4}}, "quantization_config has no mapping"),
        ("moe", {"mlp_only_layers": [0]}, "mlp_only_layers has no mapping"),
        ("moe", {"decoder_sparse_step": 2}, "decoder_sparse_step has no mapping"),
        ("moe", {"num_experts": None}, "num_experts must be a positive integer"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    configs: Configs, kind: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        spec_from_config({**configs[kind], **changes}, "there/config.json")
    assert caught.value.where == "there/config.json"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no readable config.json"), ("{", "is not JSON"), ("[]", "holds no JSON object")],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=said):
        read_spec(tmp_path)
