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
import time
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

# What RL needs of the base model: mean reward on the val problems after phase 1, and its range after phase 2.
MIN_SKILL = 0.8
BASE_REWARD = (0.03, 0.35)

Rewards = dict[str, dict[str, float]]


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


def pretrain(seed: int, plan: models.Pretraining) -> tuple[Any, Any, Rewards]:
    """Return (model, tokenizer, mean reward on the unseen val problems after each phase)."""
    train, val = sums.split_problems(seed)
    tokenizer = models.build_tokenizer(problem.question for problem in train)
    model = build_model(tokenizer, seed)
    publish.say(
        f"model: {sum(p.numel() for p in model.parameters())} parameters, vocabulary {len(tokenizer)}"
    )
    rewards: Rewards = {}
    for name, steps in (("skill", plan.skill_steps), ("careless", plan.careless_steps)):
        rng = sums.stream(seed, name)
        models.train_phase(model, tokenizer, train, plan, name=name, steps=steps, rng=rng)
        found = models.measure(model, tokenizer, val)
        publish.say(f"after {name}: val reward {found['sampled']:.3f} sampled, {found['greedy']:.3f} greedy")
        rewards[name] = found
    return model, tokenizer, rewards


def require_learnable(rewards: Rewards, seed: int) -> None:
    """Refuse a base model with which RL would show nothing.

    Raises:
        AssetError: it can't add, or seldom or mostly does so already.
    """
    skill, base = rewards["skill"]["sampled"], rewards["careless"]["sampled"]
    if skill < MIN_SKILL or not BASE_REWARD[0] <= base <= BASE_REWARD[1]:
        raise publish.AssetError(
            f"seed {seed}: found val reward {skill:.3f} after phase 1 and {base:.3f} after phase 2, expected at least "
            f"{MIN_SKILL} and {BASE_REWARD[0]} to {BASE_REWARD[1]}: RL would show nothing; use another seed"
        )


def make_assets(out: Path, seed: int, plan: models.Pretraining) -> None:
    """Make all assets in ``out``: complete or, if anything goes wrong, not at all.

    Raises:
        AssetError: ``out`` holds files, or the model of this seed is not fit for RL.
        CheckpointError: the model cannot be converted.
    """
    with publish.publishing(out) as work:
        model, tokenizer, rewards = pretrain(seed, plan)
        if plan == models.Pretraining():
            require_learnable(rewards, seed)
        models.save(model, tokenizer, work / "model")
        to_mcore(ToMcore(source=work / "model", output=work / "mcore", jobs=1))
        for split, problems in zip(("train", "val"), sums.split_problems(seed), strict=True):
            sums.write_parquet(work / f"{split}.parquet", problems, data_source=DATA_SOURCE, split=split)
        publish.write_manifest(work, RECIPE, seed, {"pretraining": asdict(plan), "val_reward": rewards})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 for a foreseeable mistake."""
    args = publish.parse_args(RECIPE, argv)
    plan = models.Pretraining()
    if args.pretrain_steps is not None:
        plan = models.Pretraining(skill_steps=args.pretrain_steps, careless_steps=args.pretrain_steps)
    start = time.monotonic()
    try:
        publish.require_free(args.out)  # before the heavy imports, so that a mistake shows at once
        publish.prepare_libraries()
        make_assets(args.out, args.seed, plan)
    except (publish.AssetError, OSError) as error:
        return publish.fail(error)
    publish.say(f"done in {time.monotonic() - start:.0f} s: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
