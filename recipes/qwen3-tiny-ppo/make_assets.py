"""Make the assets of the recipe qwen3-tiny-ppo: policy, critic, reward model, their tokenizer, and the data.

    python make_assets.py --out DIR --seed N

writes ``DIR/model``, ``DIR/critic`` and ``DIR/reward_model`` (each with safetensors, config and tokenizer), ``DIR/train.parquet``,
``DIR/val.parquet`` and ``DIR/manifest.json``. Everything is made here from the seed: nothing is downloaded. DIR appears
complete or not at all.

The task is the sum of two numbers. A model is first taught to add. From it come two others: the reward model, taught to tell
right answers from wrong ones, and the policy, shown the answers of a careless pupil until it is right one time in six. The
critic starts from the policy, with a head that values everything at 0.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_musa.data.toy import models, publish, sums

RECIPE = "qwen3-tiny-ppo"
DATA_SOURCE = f"{RECIPE}/addition"

# What RL needs of the policy: mean rule score on the val problems after phase 1, and its range after phase 2.
MIN_SKILL = 0.8
BASE_SCORE = (0.03, 0.35)
# What the reward model must get right on val problems, of right and of wrong answers each, to be worth listening to.
MIN_JUDGEMENT = 0.8

Measured = dict[str, dict[str, float]]


def train(seed: int, base: models.Pretraining, judging: models.Judging) -> tuple[Any, Any, Any, Measured]:
    """Return (policy, reward model, tokenizer, what was measured on the unseen val problems)."""
    train_problems, val = sums.split_problems(seed)
    tokenizer = models.build_tokenizer(problem.question for problem in train_problems)
    policy = models.build_policy(tokenizer, seed)
    publish.say(
        f"policy: {sum(p.numel() for p in policy.parameters())} parameters, vocabulary {len(tokenizer)}"
    )
    measured: Measured = {}
    judge = None
    for name, steps in (("skill", base.skill_steps), ("careless", base.careless_steps)):
        rng = sums.stream(seed, name)
        models.train_phase(policy, tokenizer, train_problems, base, name=name, steps=steps, rng=rng)
        measured[name] = models.measure(policy, tokenizer, val)
        found = measured[name]
        publish.say(f"after {name}: val score {found['sampled']:.3f} sampled, {found['greedy']:.3f} greedy")
        if name == "skill":
            judge = models.train_judge(policy, tokenizer, train_problems, judging, seed=seed)
            measured["judge"] = models.measure_judge(judge, tokenizer, val, sums.stream(seed, "judge-val"))
            shares = ", ".join(f"{key} {value:.3f}" for key, value in measured["judge"].items())
            publish.say(f"reward model on val problems: {shares}")
    return policy, judge, tokenizer, measured


def require_learnable(measured: Measured, seed: int) -> None:
    """Refuse models with which RL would show nothing.

    Raises:
        AssetError: the policy can't add, or seldom or mostly does so already, or the reward model can't judge.
    """
    skill, base = measured["skill"]["sampled"], measured["careless"]["sampled"]
    if skill < MIN_SKILL or not BASE_SCORE[0] <= base <= BASE_SCORE[1]:
        raise publish.AssetError(
            f"seed {seed}: found val score {skill:.3f} after phase 1 and {base:.3f} after phase 2, expected at least "
            f"{MIN_SKILL} and {BASE_SCORE[0]} to {BASE_SCORE[1]}: RL would show nothing; use another seed"
        )
    right, wrong = measured["judge"]["right_accuracy"], measured["judge"]["wrong_accuracy"]
    if min(right, wrong) < MIN_JUDGEMENT:
        raise publish.AssetError(
            f"seed {seed}: found a reward model that judges {right:.3f} of right and {wrong:.3f} of wrong answers "
            f"correctly, expected at least {MIN_JUDGEMENT} of each: its score would mean nothing; use another seed"
        )


def make_assets(out: Path, seed: int, base: models.Pretraining, judging: models.Judging) -> None:
    """Make all assets in ``out``: complete or, if anything goes wrong, not at all.

    Raises:
        AssetError: ``out`` holds files, or the models of this seed are not fit for RL.
    """
    with publish.publishing(out) as work:
        policy, judge, tokenizer, measured = train(seed, base, judging)
        if (base, judging) == (models.Pretraining(), models.Judging()):
            require_learnable(measured, seed)
        models.save(policy, tokenizer, work / "model")
        models.save(models.build_critic(policy), tokenizer, work / "critic")
        models.save_judge(judge, tokenizer, work / "reward_model")
        for split, problems in zip(("train", "val"), sums.split_problems(seed), strict=True):
            sums.write_parquet(work / f"{split}.parquet", problems, data_source=DATA_SOURCE, split=split)
        plans = {"pretraining": asdict(base), "judging": asdict(judging)}
        publish.write_manifest(work, RECIPE, seed, {**plans, "measured": measured})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 for a foreseeable mistake."""
    args = publish.parse_args(RECIPE, argv)
    base, judging, steps = models.Pretraining(), models.Judging(), args.pretrain_steps
    if steps is not None:
        base, judging = (
            models.Pretraining(skill_steps=steps, careless_steps=steps),
            models.Judging(steps=steps),
        )
    start = time.monotonic()
    try:
        publish.require_free(args.out)  # before the heavy imports, so that a mistake shows at once
        publish.prepare_libraries()
        make_assets(args.out, args.seed, base, judging)
    except (publish.AssetError, OSError) as error:
        return publish.fail(error)
    publish.say(f"done in {time.monotonic() - start:.0f} s: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
