"""Shrunk models for the variants ``sim`` of the large recipes: their architecture and proportions, narrow and shallow.

The model is taught to end a sum with a marked answer (``#### 42``), which is what the recipes' reward function looks for, and is
right now and then: enough for advantages that are not all zero, which is what a test of the option set needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from verl_musa.data.toy import models, publish, sums

MARK = "#### "
PLAN = models.Pretraining(skill_steps=400, careless_steps=80, right_rate=0.35)
BASE_REWARD = (0.02, 0.9)
"""Range of the mean reward within which groups of samples differ."""


@dataclass(frozen=True)
class Marked(sums.Problem):
    """A sum whose answer is marked."""

    @property
    def answer(self) -> str:
        """The one right answer, with its mark."""
        return f"{MARK}{super().answer}"


def build_model(tokenizer: Any, sizes: Mapping[str, Any], seed: int) -> Any:
    """A Qwen3 or, where ``sizes`` has experts, Qwen3-MoE of those sizes with random weights in float32."""
    import torch
    from transformers import (
        GenerationConfig,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    torch.manual_seed(seed)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    shared = {
        **sizes,
        **ids,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 128,
        "initializer_range": 0.05,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
        "dtype": "float32",
    }
    if "num_experts" in sizes:
        moe = {
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.0,
        }
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shared, **moe, experts_implementation="eager"))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shared))
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **ids)
    return model


def make_assets(
    recipe: str, sizes: Mapping[str, Any], work: Path, seed: int, steps: int | None = None
) -> None:
    """Make model, converted weights and data in ``work``; with ``steps`` in each phase, for tests.

    Raises:
        AssetError: the model's samples are all right or all wrong.
        CheckpointError: the model cannot be converted.
    """
    import torch

    from verl_musa.checkpoint import ToMcore, to_mcore

    plan = PLAN if steps is None else replace(PLAN, skill_steps=steps, careless_steps=steps)
    train, val = sums.split_problems(seed)
    marked = [Marked(problem.a, problem.b) for problem in train]
    tokenizer = models.build_tokenizer([*(problem.question for problem in train), *([MARK] * 100)])
    model = build_model(tokenizer, sizes, seed)
    publish.say(
        f"model: {sum(p.numel() for p in model.parameters())} parameters, vocabulary {len(tokenizer)}"
    )
    for name, count in (("skill", plan.skill_steps), ("careless", plan.careless_steps)):
        models.train_phase(
            model, tokenizer, marked, plan, name=name, steps=count, rng=sums.stream(seed, name)
        )
    found = models.measure(model, tokenizer, [Marked(problem.a, problem.b) for problem in val])
    publish.say(f"val reward {found['sampled']:.3f} sampled, {found['greedy']:.3f} greedy")
    if steps is None and not BASE_REWARD[0] <= found["sampled"] <= BASE_REWARD[1]:
        raise publish.AssetError(
            f"seed {seed}: found val reward {found['sampled']:.3f}, expected {BASE_REWARD[0]} to {BASE_REWARD[1]}: use another seed"
        )
    # The recipes train in bfloat16, from weights in it.
    models.save(model.to(torch.bfloat16), tokenizer, work / "model")
    to_mcore(ToMcore(source=work / "model", output=work / "mcore", dtype="bfloat16", jobs=1))
    for split, problems in zip(("train", "val"), (train, val), strict=True):
        sums.write_parquet(work / f"{split}.parquet", problems, data_source=f"{recipe}/sim", split=split)
    publish.write_manifest(work, recipe, seed, {"pretraining": asdict(plan), "val_reward": found})


def main(recipe: str, sizes: Mapping[str, Any], argv: Sequence[str] | None = None) -> int:
    """Run the command line of a recipe's ``make_assets.py`` and return its exit code."""

    def make(work: Path, seed: int, steps: int | None) -> None:
        make_assets(recipe, sizes, work, seed, steps)

    return publish.run_script(recipe, argv, make)
