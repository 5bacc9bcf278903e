"""Tiny models, a batch and what Hugging Face computes of it in float32 on the CPU, in a process that nothing patches.

    python hf_reference_job.py OUT

writes OUT/batch.json and, for ``dense`` and ``moe``, OUT/<name>/model (Hugging Face layout), OUT/<name>/mcore (a Megatron-Core checkpoint) and
OUT/<name>/log_probs.json: for each sample the log-probability of each token but the first.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from verl_musa.checkpoint import ToMcore, to_mcore

VOCABULARY = 128
SAMPLES = 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
    "attn_implementation": "sdpa",
    "dtype": "float32",
}


def make_model(name: str) -> Any:
    """Return the dense model, or the one with eight experts of which two compute a token; random weights, seed 0."""
    torch.manual_seed(0)
    if name == "dense":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES))
    chosen = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **chosen, router_aux_loss_coef=0.0))


def make_batch() -> list[dict[str, list[int]]]:
    """Return samples of different lengths; token 0 stands in none, since verl pads with it."""
    numbers = random.Random(1)  # noqa: S311 - data, no secrets

    def tokens(low: int, high: int) -> list[int]:
        return [numbers.randrange(1, VOCABULARY) for _ in range(numbers.randrange(low, high))]

    return [{"prompt": tokens(4, 12), "answer": tokens(2, 6)} for _ in range(SAMPLES)]


def log_probs(model: Any, ids: list[int]) -> list[float]:
    """Return the log-probability of each token of ``ids`` but the first."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        scores = torch.log_softmax(model(tokens).logits[0, :-1].double(), dim=-1)
    return [float(value) for value in scores.gather(1, tokens[0, 1:, None])[:, 0]]


def main() -> None:
    """Write everything into the folder named on the command line."""
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    batch = make_batch()
    (out / "batch.json").write_text(json.dumps(batch))
    for name in ("dense", "moe"):
        model = make_model(name)
        model.save_pretrained(out / name / "model")
        found = [log_probs(model, sample["prompt"] + sample["answer"]) for sample in batch]
        (out / name / "log_probs.json").write_text(json.dumps(found))
        to_mcore(ToMcore(source=out / name / "model", output=out / name / "mcore", jobs=1))


if __name__ == "__main__":
    main()
