"""``verl-musa convert recipe``: a recipe's own conversions, made once and checked afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_musa.checkpoint.from_recipe import layout_of
from verl_musa.checkpoint.mapping import Target, mapped_tensors
from verl_musa.checkpoint.safetensors_writer import SafetensorsWriter
from verl_musa.checkpoint.spec import spec_from_config
from verl_musa.cli import main
from verl_musa.recipe import Site, load_recipe, resolve

MakeRecipe = Callable[..., Path]
Output = pytest.CaptureFixture[str]
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 12,
    "vocab_size": 10,
}
EXTRA = """\
trainer: {config_name: ppo_megatron_trainer}
critic: {path: "${recipe.dir}/model", architecture: Qwen3ForCausalLM}
conversion:
  - {roles: [actor, ref], output: "${site.out}/policy"}
  - {roles: [critic], output: "${site.out}/critic", value_head: true, pad_vocab: 4}
"""
TP = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"


@pytest.fixture
def folder(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    made = make_recipe(extra=EXTRA, config=f"algorithm.adv_estimator: gae\n{TP}: 2\n")
    model = made / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    tensors = {
        tensor.name: tensor.shape for tensor in mapped_tensors(spec_from_config(CONFIG, ""), Target("te", 10))
    }
    with SafetensorsWriter(
        model / "model.safetensors", {name: ("F32", shape) for name, shape in tensors.items()}
    ) as stream:
        for number, (name, shape) in enumerate(tensors.items()):
            count = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            stream.write(name, memoryview(bytes([number]) * count))
    (tmp_path / "site.yaml").write_text(f"values: {{out: {tmp_path}/out}}\n", encoding="utf-8")
    monkeypatch.setenv("VERL_MUSA_RECIPES", str(made.parent))
    monkeypatch.setenv("VERL_MUSA_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.chdir(tmp_path)
    return made


def files(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(root.rglob("*")) if path.is_file()}


def test_made_once_then_checked(folder: Path, tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "out"
    assert main(["convert", "recipe", "tiny", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert f"actor, ref: 0.00 GiB of {folder}/model would be converted into {out}/policy" in text
    assert not out.exists()
    assert main(["convert", "recipe", "tiny"]) == 0
    assert f"critic: converting {folder}/model into {out}/critic" in capsys.readouterr().out
    made = files(out)
    assert main(["convert", "recipe", "tiny"]) == 0
    text = capsys.readouterr().out
    assert f"critic: {out}/critic is there: 11 tensors made from {folder}/model" in text
    assert f"verl-musa convert verify {folder}/model {out}/policy" in text
    assert files(out) == made
    for name in ("policy", "critic"):
        assert main(["convert", "verify", str(folder / "model"), str(out / name), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out.split("\n}\n")[1] + "}")["counts"]
    assert (counts["OK"], counts["FAIL"]) == (5, 0)


def test_what_is_there_and_something_else_is_refused(folder: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["convert", "recipe", "tiny"]) == 0
    made = files(tmp_path / "out")
    recipe = folder / "recipe.yaml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("pad_vocab: 4", "pad_vocab: 8"), encoding="utf-8")
    capsys.readouterr()
    assert main(["convert", "recipe", "tiny"]) == 2
    said = capsys.readouterr().err
    assert "is not the one that the recipe declares" in said
    assert "its vocab_rows is 12, asked for is 16" in said
    assert f"what {recipe}:16 declares" in said
    recipe.write_text(text, encoding="utf-8")
    (tmp_path / "out" / "policy" / "conversion.json").unlink()
    assert main(["convert", "recipe", "tiny"]) == 2
    assert "another tool made it" in capsys.readouterr().err
    made.pop(str(tmp_path / "out" / "policy" / "conversion.json"))
    assert files(tmp_path / "out") == made


@pytest.mark.usefixtures("folder")
def test_the_recipe_s_layout_is_computed_first(tmp_path: Path, capsys: Output) -> None:
    assert main(["convert", "recipe", "tiny", "--set", f"{TP}=4"]) == 2
    said = capsys.readouterr().err
    assert "--set" in said.splitlines()[0]
    assert "num_attention_heads 2 is not divisible by TP 4" in said
    assert main(["convert", "recipe", "tiny", "--set", f"{TP}=0"]) == 2
    assert "tp is 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_role_s_own_layout(folder: Path) -> None:
    sets = ["critic.megatron.pipeline_model_parallel_size=2", "critic.megatron.context_parallel_size=1"]
    resolved = resolve(load_recipe(str(folder)), run_dir=folder, site=Site(values={"out": "/out"}), sets=sets)
    assert str(layout_of(resolved, "actor")) == str(layout_of(resolved, "ref")) == "TP2"
    critic = layout_of(resolved, "critic")
    assert (critic.tp, critic.pp, critic.world) == (1, 2, 2)


def test_a_recipe_without_a_conversion(make_recipe: MakeRecipe, capsys: Output) -> None:
    assert main(["convert", "recipe", str(make_recipe(name="plain"))]) == 0
    assert "plain declares no conversion" in capsys.readouterr().out


def test_an_interrupted_one_is_continued(folder: Path, tmp_path: Path, capsys: Output) -> None:
    from verl_musa.checkpoint import torch_dist

    def broken(*_args: Any, **_kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch_dist, "seal", broken)
        assert main(["convert", "recipe", "tiny"]) == 2
    assert (tmp_path / "out" / "policy.partial").is_dir()
    assert "the disk is full" in capsys.readouterr().err
    assert main(["convert", "recipe", "tiny"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["convert", "recipe", str(folder), "--resume"]) == 0
    assert (tmp_path / "out" / "critic" / "metadata.json").is_file()
