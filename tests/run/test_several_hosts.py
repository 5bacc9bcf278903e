"""A recipe for several hosts on a machine without any of them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from verl_musa.cli import main
from verl_musa.recipe import Override, Site, load_recipe, resolve
from verl_musa.run.script import recipe_script

RECIPES = Path(__file__).parents[2] / "recipes"
LARGE = ("qwen3-8b-dense", "qwen3-30b-a3b-moe")
SITE = "shared: {shared}\nhostfile: {shared}/hosts\nvalues: {{models: {shared}/models, training_interface: bond0}}\n"
Output = pytest.CaptureFixture[str]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERL_MUSA_RECIPES", str(RECIPES))
    monkeypatch.delenv("VERL_MUSA_SITE", raising=False)
    monkeypatch.setattr("verl_musa.rules.ask_verl", lambda _: [])  # asked for real in tests/rules
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dry_run_prints_the_whole_plan_and_writes_nothing(alone: Path, capsys: Output) -> None:
    assert main(["run", "qwen3-30b-a3b", "--dry-run"]) == 0
    text = capsys.readouterr().out
    for part in (
        "image       images/musa",
        "conversion  actor, ref: <site.shared>/converted/Qwen3-30B-A3B-torch_dist",
        "data        train: <site.shared>/data/",
        "nodes       4 hosts x 8 musa devices",
        "network     roce over <site.training_interface>",
        "layout      megatron TP4 EP8 DP8 on 32 devices; sglang 8 servers of 4",
        "memory      rollout: 56.0 of 80 GiB",
        "memory      actor, update: 59.0 of 80 GiB",
        "time        20 to 59 min a step",
        "not measured here",
        "command     ",
        "verl.trainer.main_ppo",
    ):
        assert part in text
    assert list(alone.iterdir()) == []


def test_a_run_says_what_is_missing_in_one_message(alone: Path, capsys: Output) -> None:
    assert alone.is_dir()
    assert main(["run", "qwen3-30b-a3b"]) == 2
    error = capsys.readouterr().err
    assert error.count("verl-musa: error:") == 1
    for part in (
        "site.yaml: there is none",
        "shared",
        "models",
        "training_interface",
        "hostfile",
        "--dry-run",
    ):
        assert part in error


def test_a_hostfile_that_is_not_there(alone: Path, capsys: Output) -> None:
    (alone / "site.yaml").write_text(SITE.format(shared=alone), encoding="utf-8")
    (alone / "models").mkdir()
    assert main(["run", "qwen3-8b-dense", "--set", "trainer.nnodes=9"]) == 2
    assert "cluster.devices" in capsys.readouterr().err  # a check that fails comes first


def test_files_that_the_site_names_are_looked_at(alone: Path, capsys: Output) -> None:
    (alone / "site.yaml").write_text(SITE.format(shared=alone), encoding="utf-8")
    assert main(["run", "qwen3-8b-dense", "--dry-run"]) == 2
    assert f"no folder {alone}/models/Qwen3-8B" in capsys.readouterr().err


@pytest.mark.parametrize("name", LARGE)
def test_the_script_in_the_folder_is_the_recipes(name: str) -> None:
    recipe = load_recipe(str(RECIPES / name))
    file = RECIPES / name / "launch.sh"
    assert file.read_text(encoding="utf-8") == recipe_script(recipe, Site())
    assert os.access(file, os.X_OK)


@pytest.mark.parametrize("name", LARGE)
def test_the_script_submits_exactly_the_recipes_overrides(name: str, tmp_path: Path) -> None:
    """The script for real, with a ``ray`` that writes down what it is given."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ray").write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@" > "$RAY_TOLD"\n', encoding="utf-8")
    (tools / "ray").chmod(0o755)
    shared = tmp_path / "a shared folder"
    environment = {
        "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "RAY_TOLD": str(tmp_path / "told"),
        "SITE_SHARED": str(shared),
        "SITE_MODELS": str(shared / "models"),
        "SITE_TRAINING_INTERFACE": "bond0",
        "RUN_ID": "run-1",
        "PYTHONPATH": str(RECIPES.parent),
    }
    script = RECIPES / name / "launch.sh"
    done = subprocess.run(
        [str(script), "trainer.save_freq=1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "told").read_text(encoding="utf-8").split("\0")[:-1]
    given = told[told.index("--") + 1 :]
    site = Site(shared=str(shared), values={"models": str(shared / "models"), "training_interface": "bond0"})
    run_dir = shared / "runs" / name / "run-1"
    resolved = resolve(load_recipe(str(RECIPES / name)), run_dir=run_dir, site=site)
    assert given[6:-1] == [override.text for override in resolved.overrides]
    assert given[:5] == ["python3", "-m", "verl.trainer.main_ppo", "--config-name", "ppo_megatron_trainer"]
    assert given[-1] == "trainer.save_freq=1"
    environment_told = told[told.index("--runtime-env-json") + 1]
    for name_, text in resolved.runtime_env["env_vars"].items():
        assert f'"{name_}": "{text}"' in environment_told
    assert "VERL_MUSA_PATCHES" in environment_told
    assert (run_dir / "logs").is_dir()


@pytest.mark.parametrize("name", LARGE)
def test_the_script_asks_for_what_it_is_not_told(name: str) -> None:
    done = subprocess.run(
        [str(RECIPES / name / "launch.sh")],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "SITE_MODELS" in done.stderr


def test_hostile_values_stay_one_word(tmp_path: Path) -> None:
    value = 'x"; touch /tmp/no; echo `id` $HOME \\'
    recipe = load_recipe(str(RECIPES / "qwen3-8b-dense"))
    text = recipe_script(recipe, Site(), [f"trainer.experiment_name={shlex.quote(value)}"])
    script = tmp_path / "launch.sh"
    script.write_text(text, encoding="utf-8")
    checked = subprocess.run(
        ["/bin/bash", "-n", str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert isinstance(
        resolve(recipe, run_dir=tmp_path, site=Site(), without_site=True).overrides[0], Override
    )
    line = next(line for line in text.splitlines() if "experiment_name" in line)
    assert "\\`id\\`" in line
    assert "\\$HOME" in line
