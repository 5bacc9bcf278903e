"""The mean of each part of a reward at each training step.

A reward function may return more numbers than the score. verl 0.9.1's trainer averages them in validation only;
what a replay buffer returns beside its samples goes into the metrics of the step, so that is where they are averaged here:

* ``trainer.v1.sampler.custom_sampler``: RewardPartsReplayBuffer, which also keeps dispatch order (determinism).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import transfer_queue as tq

from verl_musa.device.determinism import OrderedReplayBuffer

TRAINING = "train"


class RewardPartsReplayBuffer(OrderedReplayBuffer):
    """OrderedReplayBuffer that adds ``reward/<part>/mean`` to the metrics of each training step."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Sample as verl does; the second value also holds the parts' means, for the training partition."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != TRAINING:
            return batch, metrics
        data = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=["extra_fields"])
        return batch, {**metrics, **means(data.pop("extra_fields").tolist())}


def means(extra_fields: Iterable[Any]) -> dict[str, float]:
    """Return ``reward/<part>/mean`` of each part that every response of a step has.

    Args:
        extra_fields: of each response, what verl's agent loop keeps beside the tokens; the parts are the numbers under
            ``reward_extra_info``. Other entries (text, lists) are left out, and so is ``score``, which verl logs itself.

    Raises:
        ValueError: a part is not finite.
    """
    rows = [_parts(fields) for fields in extra_fields]
    common = set.intersection(*(set(row) for row in rows)) if rows else set()
    found = {}
    for name in sorted(common):
        values = [row[name] for row in rows]
        mean = math.fsum(values) / len(values)
        if not math.isfinite(mean):
            raise ValueError(
                f"reward part {name!r}: found {values}; expected finite numbers from the reward function"
            )
        found[f"reward/{name}/mean"] = mean
    return found


def _parts(fields: Any) -> dict[str, float]:
    info = fields.get("reward_extra_info") if isinstance(fields, dict) else None
    return {
        str(name): float(value)
        for name, value in (info or {}).items()
        if isinstance(value, Real) and name != "score"
    }
