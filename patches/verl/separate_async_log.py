"""verl's trainer for separate devices hands ``flush=True`` to a logger, which takes no such argument and raises."""

import logging
from collections.abc import MutableMapping
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "verl.trainer.ppo.v1.trainer_separate_async"
TARGET = f"{MODULE}:logger"
SETUP = f"{MODULE}:PPOTrainerSeparateAsync._setup"

PATCH = Patch(
    id="verl-separate-async-log",
    summary="the separate_async trainer starts without hybrid replicas: its log line no longer raises TypeError",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        "verl.trainer.ppo.v1.trainer_separate_async:logger": {
            "0.9.1": "67ff46fe73a2c5c859da3bbe09ca2ec6e0e1aec63d0fd04ef75b2b7189b1bc37",
        },
        "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync._setup": {
            "0.9.1": "0c94538245765b4e753d78dd062c4694f176458e29209f4c465d140fa5783541",
        },
    },
    reason="With actor_rollout_ref.hybrid_engine=False, the only way to devices that are the rollout's alone, _setup() calls "
    "logger.info(..., flush=True): TypeError, after all models and servers have been loaded.",
    source="verl 0.9.1, trainer/ppo/v1/trainer_separate_async.py",
    remove_when=RemoveWhen(text="_setup() no longer passes flush to the logger"),
    without="unexpected keyword argument 'flush'",
)


class _WithoutFlush(logging.LoggerAdapter):  # type: ignore[type-arg]  # generic in typeshed only
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave ``flush`` out: handlers flush after each record anyway."""
        return msg, {name: value for name, value in kwargs.items() if name != "flush"}


@PATCH.attribute(TARGET)
def _tolerant(current: logging.Logger) -> logging.LoggerAdapter:  # type: ignore[type-arg]
    return _WithoutFlush(current, None)
