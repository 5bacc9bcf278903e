from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_musa.run.facts import git_facts, needed_packages, package_versions


def subject(module: str, config: dict[str, Any], *, simulated: bool = True) -> Any:
    recipe = SimpleNamespace(
        trainer=SimpleNamespace(module=module), device=SimpleNamespace(simulated=simulated), extras=()
    )
    return SimpleNamespace(recipe=recipe, config=config)


def test_needed_packages_follow_the_recipe() -> None:
    config = {"actor_rollout_ref": {"rollout": {"name": "sglang"}, "actor": {"strategy": "megatron"}}}
    needed = needed_packages(subject("verl.trainer.main_ppo", config))
    assert {"ray", "verl", "torch", "musa-sim", "sglang", "megatron-core"} <= set(needed)
    assert "torch_musa" in needed_packages(subject("verl.trainer.main_ppo", {}, simulated=False))
    assert needed_packages(subject("fake_trainer.main", {})) == ["ray"]


def test_installed_versions_are_recorded_and_missing_packages_left_out() -> None:
    versions = package_versions()
    assert versions["omegaconf"]
    assert all(versions.values())


def test_the_checkout_is_named(tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git here")
    assert git_facts(tmp_path) is None
    (tmp_path / "a").write_text("1")
    who = ["-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    for command in (["init", "-q"], ["add", "a"], [*who, "commit", "-qm", "x"]):
        subprocess.run([git, "-C", str(tmp_path), *command], check=True)
    facts = git_facts(tmp_path)
    assert facts is not None
    assert len(facts.commit) == 40
    assert not facts.dirty
    (tmp_path / "a").write_text("2")
    changed = git_facts(tmp_path)
    assert changed is not None
    assert changed.dirty
