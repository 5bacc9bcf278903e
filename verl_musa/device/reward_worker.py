"""The worker that holds a device for a reward model's server, proving which one it is.

verl 0.9.1 starts a CheckpointEngineWorker for each device of such a server: it keeps Ray from giving the device away, and the
server, which owns nothing in Ray's eyes, takes its place. Nothing syncs weights there, so nothing else would prove it.
"""

from __future__ import annotations

from typing import Any

from verl.checkpoint_engine.base import CheckpointEngineWorker

from verl_musa.device import proof

ROLE = "reward-worker"


class RewardWorker(CheckpointEngineWorker):
    """verl's worker, with a proof.

    Raises:
        ExpectationError: this worker is not on the device that the run expects.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Its process group is for the host only: the server makes its own.
        proof.prove(ROLE, grouped=False)
