"""What verl itself says about composed configurations, in a process of its own: importing verl takes seconds and pulls torch in.

    python _verl_job.py JOB.json RESULT.json

JOB: a list of configurations. RESULT: for each a list of {"part", "message"}; empty where verl has nothing against it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import warnings
from pathlib import Path
from typing import Any

MODELS = ("actor_rollout_ref.model", "critic.model")
"""verl reads the model's files when it makes these; only their names are looked at."""


def _root(error: BaseException) -> str:
    """The innermost reason: Hydra wraps what a dataclass says."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _as_worker_sees(ref: dict[str, Any], actor: dict[str, Any]) -> dict[str, Any]:
    """The reference's block after the renaming that verl's worker does before it makes a dataclass of it."""
    names = {
        "log_prob_micro_batch_size": "ppo_micro_batch_size",
        "log_prob_micro_batch_size_per_gpu": "ppo_micro_batch_size_per_gpu",
        "log_prob_use_dynamic_bsz": "use_dynamic_bsz",
        "log_prob_max_token_len_per_gpu": "ppo_max_token_len_per_gpu",
    }
    renamed = {names.get(key, key): value for key, value in ref.items()}
    return {**renamed, "ppo_mini_batch_size": actor["ppo_mini_batch_size"]}


def _plain_types(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` with Megatron's float32, which this project's patch verl-mcore-float32 adds, named as verl knows types."""
    for role in (config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["ref"], config["critic"]):
        block = role.get("megatron") or {}
        if block.get("dtype") == "float32":
            block["dtype"] = "bfloat16"
    return config


def _unknown_names(block: dict[str, Any], kind: Any) -> list[str]:
    known = {field.name for field in dataclasses.fields(kind)} | {"_target_"}
    return sorted(set(block) - known)


def look(config: dict[str, Any]) -> list[dict[str, str]]:
    """Everything that verl's dataclasses and its own validation have against one configuration."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.workers.config import HFModelConfig

    problems = []
    whole = OmegaConf.create(_plain_types(copy.deepcopy(config)))
    plain: dict[str, Any] = OmegaConf.to_container(whole, resolve=True)
    for path in MODELS:
        block = plain["critic"]["model"] if path.startswith("critic") else plain["actor_rollout_ref"]["model"]
        problems += [
            {"part": path, "message": f"HFModelConfig has no field '{name}'"}
            for name in _unknown_names(block, HFModelConfig)
        ]
    plain["critic"]["model"] = None
    inner = plain["actor_rollout_ref"]
    reference, critic = bool(need_reference_policy(whole)), bool(need_critic(whole))
    parts = {
        "actor_rollout_ref.actor": inner["actor"],
        "actor_rollout_ref.rollout": inner["rollout"],
        "algorithm": plain["algorithm"],
    }
    if reference:
        parts["actor_rollout_ref.ref"] = _as_worker_sees(inner["ref"], inner["actor"])
    if critic:
        parts["critic"] = plain["critic"]
    for part, block in parts.items():
        try:
            omega_conf_to_dataclass(OmegaConf.create(block))
        except Exception as error:  # noqa: BLE001  (whatever verl raises is what it has against the block)
            problems.append({"part": part, "message": _root(error)})
    if not problems:
        try:
            validate_config(OmegaConf.create(plain), use_reference_policy=reference, use_critic=critic)
        except Exception as error:  # noqa: BLE001  (as above)
            problems.append({"part": "validate_config", "message": _root(error)})
    return problems


def main(job: Path, result: Path) -> None:
    """Look at every configuration of ``job``."""
    warnings.simplefilter("ignore")
    configs = json.loads(job.read_text(encoding="utf-8"))
    result.write_text(json.dumps([look(config) for config in configs]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
