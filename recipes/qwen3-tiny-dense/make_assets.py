"""Make the assets of the recipe qwen3-tiny-dense: a tiny Qwen3 with its own tokenizer, and the data to train it on.

    python make_assets.py --out DIR --seed N

writes ``DIR/model`` (safetensors, config, tokenizer), ``DIR/train.parquet``, ``DIR/val.parquet`` and ``DIR/manifest.json``.
Everything is made here from the seed: nothing is downloaded. DIR appears complete or not at all.

The task is the sum of two numbers. The model is first taught to add (phase 1), then shown the answers of a careless pupil,
who is right one time in ten (phase 2). What comes out knows how to add but seldom does, which is what RL is for: the
exact-match reward of its samples starts low, and rises only if the policy gradient really reaches the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from verl_musa.data.toy import models, publish, sums

RECIPE = "qwen3-tiny-dense"
DATA_SOURCE = f"{RECIPE}/addition"


def make_assets(work: Path, seed: int, steps: int | None = None) -> None:
    """Make all assets in ``work``.

    Raises:
        AssetError: the model of this seed is not fit for RL.
    """
    plan = models.Pretraining.of(steps)
    train, val = sums.split_problems(seed)
    tokenizer = models.build_tokenizer(problem.question for problem in train)
    model = models.build_policy(tokenizer, seed)
    measured = models.teach(model, tokenizer, seed, plan)
    if steps is None:
        models.require_learnable(measured, seed)
    models.save(model, tokenizer, work / "model")
    sums.write_parquet(work / "train.parquet", train, data_source=DATA_SOURCE, split="train")
    sums.write_parquet(work / "val.parquet", val, data_source=DATA_SOURCE, split="val")
    publish.write_manifest(work, RECIPE, seed, {"pretraining": asdict(plan), "measured": measured})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return publish.run_script(RECIPE, argv, make_assets)


if __name__ == "__main__":
    sys.exit(main())
