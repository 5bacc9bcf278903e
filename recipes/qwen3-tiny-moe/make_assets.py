"""Make the assets of the recipe qwen3-tiny-moe: a tiny Qwen3 mixture of experts, its tokenizer, and the data to train it on.

    python make_assets.py --out DIR --seed N

writes ``DIR/model`` (safetensors, config, tokenizer), ``DIR/mcore`` (the same weights as a Megatron-Core checkpoint),
``DIR/train.parquet``, ``DIR/val.parquet`` and ``DIR/manifest.json``.
Everything is made here from the seed: nothing is downloaded. DIR appears complete or not at all.

The task is the sum of two numbers, as in qwen3-tiny-dense: the model is first taught to add, then shown the answers of a
careless pupil until it is right one time in four.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_musa.checkpoint import ToMcore, to_mcore
from verl_musa.data.toy import models, publish, sums

RECIPE = "qwen3-tiny-moe"
DATA_SOURCE = f"{RECIPE}/addition"

EXPERTS = 8
CHOSEN = 2


def build_model(tokenizer: Any, seed: int) -> Any:
    """Return a Qwen3MoeForCausalLM in float32 with random weights: 8 experts of which 2 compute each token, about 0.3 M.

    The heads are the dense model's (GQA, qk-norm, head_dim not hidden/heads). The chosen experts' weights are normalised
    (``norm_topk_prob``), as in the Qwen3 models and as Megatron computes them.
    """
    import torch
    from transformers import GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        router_aux_loss_coef=0.0,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.05,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        experts_implementation="eager",
        dtype="float32",
        **ids,
    )
    model = Qwen3MoeForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **ids)
    return model


def make_assets(work: Path, seed: int, steps: int | None = None) -> None:
    """Make all assets in ``work``.

    Raises:
        AssetError: the model of this seed is not fit for RL.
        CheckpointError: the model cannot be converted.
    """
    plan = models.Pretraining.of(steps)
    train, val = sums.split_problems(seed)
    tokenizer = models.build_tokenizer(problem.question for problem in train)
    model = build_model(tokenizer, seed)
    measured = models.teach(model, tokenizer, seed, plan)
    if steps is None:
        models.require_learnable(measured, seed)
    models.save(model, tokenizer, work / "model")
    to_mcore(ToMcore(source=work / "model", output=work / "mcore", jobs=1))
    sums.write_parquet(work / "train.parquet", train, data_source=DATA_SOURCE, split="train")
    sums.write_parquet(work / "val.parquet", val, data_source=DATA_SOURCE, split="val")
    publish.write_manifest(work, RECIPE, seed, {"pretraining": asdict(plan), "measured": measured})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return publish.run_script(RECIPE, argv, make_assets)


if __name__ == "__main__":
    sys.exit(main())
