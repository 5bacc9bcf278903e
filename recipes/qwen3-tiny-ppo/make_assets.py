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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from verl_musa.data.toy import models, publish, sums

RECIPE = "qwen3-tiny-ppo"
DATA_SOURCE = f"{RECIPE}/addition"

# What the reward model must get right on val problems, of right and of wrong answers each, to be worth listening to.
MIN_JUDGEMENT = 0.8


def require_judgement(measured: models.Measured, seed: int) -> None:
    """Refuse a reward model whose score would mean nothing.

    Raises:
        AssetError: it is wrong too often.
    """
    right, wrong = measured["judge"]["right_accuracy"], measured["judge"]["wrong_accuracy"]
    if min(right, wrong) < MIN_JUDGEMENT:
        raise publish.AssetError(
            f"seed {seed}: found a reward model that judges {right:.3f} of right and {wrong:.3f} of wrong answers "
            f"correctly, expected at least {MIN_JUDGEMENT} of each: its score would mean nothing; use another seed"
        )


def make_assets(work: Path, seed: int, steps: int | None = None) -> None:
    """Make all assets in ``work``.

    Raises:
        AssetError: the models of this seed are not fit for RL.
    """
    plan = models.Pretraining.of(steps)
    judging = models.Judging() if steps is None else models.Judging(steps=steps)
    train, val = sums.split_problems(seed)
    tokenizer = models.build_tokenizer(problem.question for problem in train)
    policy = models.build_policy(tokenizer, seed)
    judged: models.Measured = {}

    def make_judge() -> None:
        judge = models.train_judge(policy, tokenizer, train, judging, seed=seed)
        found = judged["judge"] = models.measure_judge(judge, tokenizer, val, sums.stream(seed, "judge-val"))
        shares = ", ".join(f"{key} {value:.3f}" for key, value in found.items())
        publish.say(f"reward model on val problems: {shares}")
        models.save_judge(judge, tokenizer, work / "reward_model")

    measured = models.teach(policy, tokenizer, seed, plan, after_skill=make_judge) | judged
    if steps is None:
        models.require_learnable(measured, seed)
        require_judgement(measured, seed)
    models.save(policy, tokenizer, work / "model")
    models.save(models.build_critic(policy), tokenizer, work / "critic")
    sums.write_parquet(work / "train.parquet", train, data_source=DATA_SOURCE, split="train")
    sums.write_parquet(work / "val.parquet", val, data_source=DATA_SOURCE, split="val")
    plans = {"pretraining": asdict(plan), "judging": asdict(judging)}
    publish.write_manifest(work, RECIPE, seed, {**plans, "measured": measured})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return publish.run_script(RECIPE, argv, make_assets)


if __name__ == "__main__":
    sys.exit(main())
