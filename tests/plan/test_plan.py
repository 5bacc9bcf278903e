"""Arithmetic by hand beside the code's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_musa.plan import (
    GIB,
    Assumptions,
    ModelShape,
    ServerLayout,
    TrainerLayout,
    server_memory,
    step_time,
    trainer_states,
    trainer_work,
)

DENSE: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "intermediate_size": 16,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}
MOE = {**DENSE, "num_experts": 8, "moe_intermediate_size": 4, "num_experts_per_tok": 2}
QWEN3_8B = {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_30B = {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip


def shape(config: dict[str, Any]) -> ModelShape:
    found = ModelShape.from_config(config)
    assert found is not None
    return found


def test_parameters_of_a_dense_layer() -> None:
    found = shape(DENSE)
    assert found.attention == 8 * 2 * (4 + 2 + 2 + 4)
    assert found.dense_layer == found.attention + 3 * 8 * 16
    assert found.total == 4 * found.dense_layer + 2 * 800
    assert found.active == found.total - 800
    assert found.cache_per_token == 2 * 4 * 2 * 2


def test_parameters_of_experts() -> None:
    found = shape(MOE)
    assert found.expert_layer == 8 * 3 * 8 * 4
    assert found.dense_layer == found.attention + 8 * 8
    assert found.total - found.active == 4 * 6 * 3 * 8 * 4 + 800


def test_the_real_models_are_as_large_as_their_names_say() -> None:
    assert shape(QWEN3_8B).total == pytest.approx(8.19e9, rel=1e-3)
    assert shape(QWEN3_30B).total == pytest.approx(30.5e9, rel=2e-3)
    assert shape(QWEN3_30B).active == pytest.approx(3.04e9, rel=2e-2)


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"])
def test_a_shape_is_whole_or_none(missing: str) -> None:
    assert ModelShape.from_config({k: v for k, v in DENSE.items() if k != missing}) is None
    assert ModelShape.from_config({"text_config": DENSE}) == shape(DENSE)


def test_megatron_divides_experts_and_the_rest_apart() -> None:
    found = shape(MOE)
    layout = TrainerLayout(strategy="megatron", world=8, tp=2, ep=4, param_offload=True)
    states = trainer_states(found, layout)
    dense = (4 * found.dense_layer + 2 * 800) / 2
    experts = 4 * found.expert_layer / 4
    assert states.weights == 2 * (dense + experts)
    assert states.gradients == 4 * (dense + experts)
    assert states.optimizer == pytest.approx(12 * (dense / 4 + experts / 2))
    assert states.training == states.weights + states.gradients + states.optimizer
    assert states.resting == states.optimizer
    assert states.inferring == states.weights + states.optimizer


def test_fsdp_divides_all_over_all() -> None:
    found = shape(DENSE)
    states = trainer_states(found, TrainerLayout(strategy="fsdp2", world=4, optimizer_offload=True))
    assert states.training == 16 * found.total / 4
    assert states.resting == 4 * found.total / 4


def test_an_optimizer_on_the_host_is_not_on_the_device() -> None:
    found = shape(DENSE)
    away = trainer_states(found, TrainerLayout(strategy="megatron", world=4, host_optimizer=1.0))
    assert away.optimizer == 0


def test_logits_are_divided_by_tensor_and_context_parallelism() -> None:
    found = shape(DENSE)
    layout = TrainerLayout(strategy="megatron", world=8, tp=2, cp=2, recompute=True, sequence_parallel=True)
    update = trainer_work(found, layout, 64, backward=True)
    infer = trainer_work(found, layout, 64, backward=False)
    assert update.logits == 14 * 32 * 100 / 2
    assert infer.logits == 10 * 32 * 100 / 2
    assert update.activations > infer.activations
    whole = trainer_work(found, TrainerLayout(strategy="megatron", world=8, tp=2, cp=2, sequence_parallel=True), 64, backward=True)  # fmt: skip
    assert whole.activations > update.activations


def test_a_server_has_weights_and_the_rest_is_cache() -> None:
    found = shape(DENSE)
    memory = server_memory(found, ServerLayout(devices=2, replicas=1, fraction=0.5, device_gib=1))
    assert memory.weights == found.total
    assert memory.total == 0.5 * GIB
    assert memory.cache_tokens == int(memory.cache / (2 * found.cache_per_token / 2))
    copied = server_memory(found, ServerLayout(devices=4, replicas=1, fraction=0.5, device_gib=1))
    assert copied.cache_tokens == int(copied.cache / (2 * found.cache_per_token / 2))
    none = server_memory(found, ServerLayout(devices=1, replicas=1, fraction=1e-9, device_gib=1))
    assert (none.cache, none.cache_tokens) == (0, 0)


def test_time_grows_with_tokens_and_falls_with_devices() -> None:
    found = shape(QWEN3_8B)
    asked: dict[str, Any] = {
        "sequences": 512,
        "prompt": 300,
        "response": 16384,
        "reference": True,
        "recompute": True,
    }
    four = step_time(found, world=32, nodes=4, **asked)
    two = step_time(found, world=16, nodes=2, **asked)
    assert four.step[0] < four.step[1]
    assert two.step[0] == pytest.approx(2 * four.step[0])
    assert two.training[1] == pytest.approx(2 * four.training[1])
    tokens = 512 * (300 + 4096)
    assert four.step[0] == pytest.approx(tokens / (900 * 4))
    slow = Assumptions(tokens_per_node=(300.0, 450.0))
    assert step_time(found, world=32, nodes=4, assumed=slow, **asked).step[0] == pytest.approx(
        2 * four.step[0]
    )


@given(tp=st.sampled_from([1, 2, 4]), ep=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]))
def test_dividing_further_never_takes_more_weights(tp: int, ep: int, pp: int) -> None:
    found = shape(MOE)
    whole = trainer_states(found, TrainerLayout(strategy="megatron", world=32))
    part = trainer_states(found, TrainerLayout(strategy="megatron", world=32, tp=tp, ep=ep, pp=pp))
    assert part.weights <= whole.weights
    assert part.optimizer <= whole.optimizer * max(tp, ep) * pp
