"""PPO for real: FSDP2 actor and critic, SGLang rollout, and a reward model that verl serves with SGLang too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli, metrics_of, processes_of, record_of

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(1800)]

RECIPE = "qwen3-tiny-ppo"
STEPS = 4
RULE, MODEL = 0.7, 0.3
SHORT = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
)


def column(run_dir: Path, name: str) -> list[float]:
    """One metric at each step; fails if a step lacks it or it is not finite."""
    values = [float(row["data"][name]) for row in metrics_of(run_dir)]
    assert all(map(math.isfinite, values)), (name, values)
    return values


def proofs(run_dir: Path, role: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((run_dir / "logs/proof").glob(f"{role}-*.json"))]


def test_actor_critic_and_reward_model_work_together(cli: Cli) -> None:
    assert cli.run(RECIPE, *(part for value in SHORT for part in ("--set", value))) == 0
    (run_dir,) = cli.run_dirs()
    record = record_of(run_dir)
    assert record["status"] == "succeeded"
    assert (record["device"]["type"], record["device"]["simulated"]) == ("musa", True)
    assert record["device"]["count"] == 2
    assert [row["step"] for row in metrics_of(run_dir)] == list(range(1, STEPS + 1))

    # Both parts of the reward are there, move between their bounds, and add up to the score that verl trains on.
    rule, model = column(run_dir, "reward/rule_score/mean"), column(run_dir, "reward/model_score/mean")
    assert all(0 < value < 1 for value in (*rule, *model))
    # A reward model that is not asked, or does not know the task, says the same of everything.
    assert max(model) - min(model) > 1e-3
    for step, score in enumerate(column(run_dir, "critic/score/mean")):
        assert score == pytest.approx(RULE * rule[step] + MODEL * model[step], abs=1e-5)

    loss = column(run_dir, "critic/vf_loss")
    assert loss[-1] < loss[0]
    # Its head starts at 0, so what it values later it has learnt.
    values = column(run_dir, "critic/values/mean")
    assert values[0] == pytest.approx(0, abs=1e-6)
    assert values[-1] > 0.05
    assert max(column(run_dir, "training/rollout_probs_diff_max")) < 1e-5

    roles = {"fsdp-language_model": 2, "fsdp-value_model": 2, "reward-worker": 1, "sglang-server": 3}
    for role, count in roles.items():
        found = proofs(run_dir, role)
        assert len(found) == count, role
        for fact in found:
            assert (fact["device"], fact["backend"], fact["simulated"]) == ("musa", "mccl", True)
    ranks = [(fact["rank"], fact["world_size"]) for fact in proofs(run_dir, "fsdp-value_model")]
    assert sorted(ranks) == [(0, 2), (1, 2)]
    assert processes_of(run_dir) == []
