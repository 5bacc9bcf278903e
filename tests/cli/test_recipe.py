from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from verl_musa.cli import main
from verl_musa.rules import CHECKS

MakeRecipe = Callable[..., Path]

RUNTIME_ENV = """\
env_vars:
  RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES: "1"
  RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO: "0"
"""


@pytest.fixture
def folder(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    made = make_recipe(runtime_env=RUNTIME_ENV)
    monkeypatch.setenv("VERL_MUSA_RECIPES", str(made.parent))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(
        "verl_musa.rules.ask_verl", lambda _: []
    )  # takes seconds; asked for real in tests/rules
    monkeypatch.delenv("VERL_MUSA_SITE", raising=False)
    monkeypatch.chdir(tmp_path)
    return made


Output = pytest.CaptureFixture[str]


def test_list(folder: Path, capsys: Output) -> None:
    broken = folder.parent / "broken"
    broken.mkdir()
    (broken / "recipe.yaml").write_text("name: [", encoding="utf-8")
    assert main(["recipe", "list"]) == 0
    text = capsys.readouterr().out
    assert "A recipe for tests" in text
    assert "musa, simulated" in text
    assert "broken" in text
    assert "cannot be read" in text


def test_list_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("VERL_MUSA_RECIPES", str(folder / "none"))
    assert main(["recipe", "list"]) == 0
    assert capsys.readouterr().out == "no recipes found\n"


def test_show(folder: Path, capsys: Output) -> None:
    assert main(["recipe", "show", "ti"]) == 0
    assert capsys.readouterr().out == (folder / "recipe.yaml").read_text(encoding="utf-8")


def test_show_overrides(folder: Path, capsys: Output) -> None:
    assert main(["recipe", "show", "tiny", "--set", "trainer.save_freq=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"data.seed=17    # {folder}/recipe.yaml:11" in lines
    assert lines[-1] == "trainer.save_freq=2    # --set trainer.save_freq=2"


def test_show_resolved(folder: Path, capsys: Output) -> None:
    assert main(["recipe", "show", "tiny", "--resolved", "--set", "trainer.save_freq=2"]) == 0
    config = OmegaConf.create(capsys.readouterr().out)
    assert (config.trainer.save_freq, config.data.seed) == (2, 17)
    assert config.actor_rollout_ref.model.path == f"{folder}/model"


def test_show_portable(folder: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["recipe", "show", "tiny", "--resolved", "--portable"]) == 0
    text = capsys.readouterr().out
    assert "<recipe.dir>/model" in text
    assert str(tmp_path) not in text
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipe", "show", "nope"], "no recipe 'nope'"),
        (["recipe", "show", "tiny", "--resolved", "--set", "trainer.nope=1"], "no key 'trainer.nope'"),
        (["recipe", "check", "tiny", "--set", "trainer.save_freq=x"], "wrong type for 'trainer.save_freq'"),
        (["recipe", "check"], "name recipes, or give --all"),
        (["recipe", "check", "tiny", "--all"], "name recipes, or give --all"),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], message: str, folder: Path, capsys: Output) -> None:
    assert folder.is_dir()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("verl-musa: error: ")
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_check_fails_and_says_what_to_do(folder: Path, capsys: Output) -> None:
    assert main(["recipe", "check", "tiny"]) == 2
    text = capsys.readouterr().out
    assert f"no folder {folder}/model" in text
    assert "-> correct model.path in recipe.yaml" in text
    assert f"{len(CHECKS)} checks: " in text


def test_check_json_without_assets_is_unknown(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = (folder / "recipe.yaml").read_text(encoding="utf-8").replace("${recipe.dir}/", "${assets.dir}/")
    (folder / "recipe.yaml").write_text(text + "assets: {script: make.py, seed: 1}\n", encoding="utf-8")
    (folder / "make.py").write_text("import sys\nsys.exit('cannot make anything')\n", encoding="utf-8")
    assert main(["recipe", "check", "tiny", "--json", "--no-assets"]) == 3
    value = json.loads(capsys.readouterr().out)
    assert (value["recipe"], value["schema"], value["exit_code"]) == ("tiny", 1, 3)
    assert value["counts"]["FAIL"] == 0
    states = {check["check"]: check["status"] for check in value["checks"]}
    assert (states["model.folder"], states["reward.file"]) == ("UNKNOWN", "OK")
    assert main(["recipe", "check", "tiny"]) == 2
    assert "cannot make anything" in capsys.readouterr().err


def test_help_documents_the_exit_codes(capsys: Output) -> None:
    assert main(["recipe", "check", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "0 when nothing failed" in text
    assert "3 when nothing failed but something could not be looked at" in text


def test_extras_of_a_run(folder: Path, capsys: Output) -> None:
    (folder / "variants").mkdir()
    (folder / "variants" / "big.yaml").write_text("summary: x\nrecipe: {extras: [megatron, vllm]}\n")
    for arguments in (
        ["tiny@big"],
        ["--variant", "big", "--set", "a=b", "tiny", "--dry-run", "--ray-port", "7"],
    ):
        assert main(["recipe", "extras", *arguments]) == 0
        assert capsys.readouterr().out.split() == ["megatron", "vllm"]
    assert main(["recipe", "extras", "tiny"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("folder")
def test_extras_without_a_recipe(capsys: Output) -> None:
    assert main(["recipe", "extras", "--dry-run"]) == 2
    assert "name a recipe" in capsys.readouterr().err


def test_a_variant_is_listed_shown_and_checked(folder: Path, capsys: Output) -> None:
    (folder / "variants").mkdir()
    file = folder / "variants" / "often.yaml"
    file.write_text("summary: Saves often\nconfig: {trainer.save_freq: 1}\n")
    assert main(["recipe", "list"]) == 0
    assert "often" in capsys.readouterr().out
    assert main(["recipe", "show", "tiny@often"]) == 0
    assert capsys.readouterr().out == (folder / "recipe.yaml").read_text() + file.read_text()
    assert main(["recipe", "show", "tiny", "--variant", "often", "--resolved"]) == 0
    assert OmegaConf.create(capsys.readouterr().out).trainer.save_freq == 1


def test_check_several_shows_what_is_not_ok(folder: Path, capsys: Output) -> None:
    broken = folder.parent / "broken"
    broken.mkdir()
    (broken / "recipe.yaml").write_text("name: [", encoding="utf-8")
    (folder / "variants").mkdir()
    (folder / "variants" / "often.yaml").write_text("summary: Saves often\nconfig: {trainer.save_freq: 1}\n")
    assert main(["recipe", "check", "--all"]) == 2
    text = capsys.readouterr().out
    assert "broken: 1 checks, 1 not OK" in text
    assert f"{broken}/recipe.yaml:1" in text
    assert "tiny: " in text
    assert "tiny@often: " in text
    assert main(["recipe", "check", "tiny", "tiny@often", "--json"]) == 2
    value = json.loads(capsys.readouterr().out)
    assert (value["schema"], value["exit_code"]) == (1, 2)
    assert [one["recipe"] for one in value["recipes"]] == ["tiny", "tiny@often"]
    assert main(["recipe", "check", "broken", "--json"]) == 2
    (only,) = json.loads(capsys.readouterr().out)["checks"]
    assert (only["check"], only["status"]) == ("recipe.resolve", "FAIL")


def test_checks_of_files_wait_where_the_site_is_silent(folder: Path, capsys: Output) -> None:
    text = (folder / "recipe.yaml").read_text(encoding="utf-8").replace("${recipe.dir}/", "${site.shared}/")
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    assert main(["recipe", "check", "tiny"]) == 3  # no facts of the model either
    shown = capsys.readouterr().out
    assert "checks of files wait for the run (site.yaml does not set shared)" in shown
    assert main(["recipe", "check", "tiny", "--json"]) == 3
    value = json.loads(capsys.readouterr().out)
    assert value["missing_site"] == ["shared"]
    assert "model.folder" in value["deferred"]


def test_launch_prints_a_script_or_writes_it(folder: Path, capsys: Output) -> None:
    assert main(["recipe", "launch", "tiny"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/usr/bin/env bash\n")
    assert main(["recipe", "launch", "tiny", "-o", str(folder / "launch.sh")]) == 0
    assert (folder / "launch.sh").read_text(encoding="utf-8") == text
    assert (folder / "launch.sh").stat().st_mode & 0o111
