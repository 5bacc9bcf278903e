"""Without hybrid replicas the trainer for separate devices gets through its set-up, and still logs what it did."""

import logging
from typing import Any

from support import load

module: Any = load(
    "verl.trainer.ppo.v1.trainer_separate_async",
    distribution="verl",
    stubs=(
        "omegaconf", "ray", "transfer_queue", "verl.checkpoint_engine", "verl.experimental", "verl.trainer.config",
        "verl.trainer.ppo.utils", "verl.trainer.ppo.v1.trainer_base", "verl.utils", "verl.workers",
    ),
)  # fmt: skip


class Servers:
    rollout_replicas = ()

    @classmethod
    def create(cls, **_options: Any) -> "Servers":
        return cls()

    def get_replicas(self) -> list[str]:
        return ["one replica"]


class Anywhere:
    """A configuration in which every key is there and false."""

    def __getattr__(self, name: str) -> "Anywhere":
        return Anywhere()

    def __bool__(self) -> bool:
        return False


def setup_without_hybrid_replicas() -> str:
    trainer = object.__new__(module.PPOTrainerSeparateAsync)
    trainer.llm_server_manager = Servers()
    trainer.config, trainer.actor_rollout_wg = Anywhere(), None
    trainer._enable_hybrid_replicas = False
    trainer._setup()
    return str(trainer.current_mode)


lines: list[str] = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger(module.__name__).addHandler(handler)
module.LLMServerManager = Servers
module.PPOTrainer._setup = lambda _self: None
mode = setup_without_hybrid_replicas()
if mode != "HybridEngineMode.TRAINER":
    raise SystemExit(f"found mode {mode}")
if not any("1 standalone replicas only" in line for line in lines):
    raise SystemExit(f"the line was lost: {lines}")
