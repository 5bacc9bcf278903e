from __future__ import annotations

from verl_musa.device.vllm_seed import vllm_sampling


def test_a_seed_gets_vllms_name() -> None:
    given = {"temperature": 1.0, "sampling_seed": 2**61}
    assert vllm_sampling(given) == {"temperature": 1.0, "seed": 2**61}
    assert given == {"temperature": 1.0, "sampling_seed": 2**61}


def test_without_a_seed_nothing_changes() -> None:
    assert vllm_sampling({"logprobs": True}) == {"logprobs": True}
    assert vllm_sampling({"sampling_seed": None}) == {}
