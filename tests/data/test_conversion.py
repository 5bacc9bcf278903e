from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_musa.checkpoint import ToMcore, to_mcore
from verl_musa.checkpoint.mapping import Target, mapped_tensors
from verl_musa.checkpoint.safetensors_writer import SafetensorsWriter
from verl_musa.checkpoint.spec import spec_from_config
from verl_musa.checks import Result, Status, run_checks
from verl_musa.data import conversion, require
from verl_musa.data.subject import Subject
from verl_musa.errors import DataError

Look = Callable[..., Subject]
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 12,
    "vocab_size": 10,
}
KL, GAE = "actor_rollout_ref.actor.use_kl_loss=true", "algorithm.adv_estimator=gae"
RECIPE = """\
critic: {path: "${recipe.dir}/critic", architecture: Qwen3ForCausalLM}
conversion:
  - {roles: [actor, ref], output: "${recipe.dir}/mcore"}
  - {roles: [critic], output: "${recipe.dir}/critic-mcore", value_head: true}
trainer: {config_name: ppo_megatron_trainer}
"""


def write_model(folder: Path, fill: int = 0, **changes: Any) -> Path:
    config = {**MODEL, **changes}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = spec_from_config(config, "")
    tensors = {tensor.name: tensor.shape for tensor in mapped_tensors(spec, Target("te", spec.vocab))}
    announced = {name: ("F32", shape) for name, shape in tensors.items()}
    with SafetensorsWriter(folder / "model.safetensors", announced) as stream:
        for name, shape in tensors.items():
            count = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            stream.write(name, memoryview(bytes([fill]) * count))
    return folder


@pytest.fixture
def megatron(folder: Path) -> Path:
    """A recipe whose actor, reference model and critic load converted weights, which are there."""
    for role, fill in (("model", 0), ("critic", 1)):
        write_model(folder / role, fill)
    with (folder / "recipe.yaml").open("a", encoding="utf-8") as file:
        file.write(RECIPE)
    convert(folder / "model", folder / "mcore")
    convert(folder / "critic", folder / "critic-mcore", value_head=True)
    return folder


def convert(source: Path, output: Path, **options: Any) -> Path:
    return to_mcore(ToMcore(source=source, output=output, **options))


def results(subject: Subject) -> dict[str, Result]:
    return {result.check: result for result in run_checks(conversion.CHECKS, subject)}


def actor(look: Look, *sets: str, **options: Any) -> Result:
    return results(look(*sets, **options))["conversion.actor"]


def holds(result: Result, status: Status, evidence: str) -> None:
    assert (result.status, evidence in result.evidence) == (status, True), result
    if status is Status.FAIL:
        assert result.fix
        assert result.where


@pytest.mark.usefixtures("megatron")
def test_all_right(look: Look) -> None:
    found = results(look(KL, GAE))
    assert {name: result.status for name, result in found.items()} == dict.fromkeys(found, Status.OK)
    assert set(found) == {"conversion.actor", "conversion.ref", "conversion.critic"}
    assert "11 tensors made from" in found["conversion.critic"].evidence
    assert "te names" in found["conversion.ref"].evidence


@pytest.mark.usefixtures("megatron")
def test_roles_that_a_job_does_not_have(look: Look) -> None:
    found = results(look())
    holds(found["conversion.ref"], Status.OK, "the job has no reference model")
    holds(found["conversion.critic"], Status.OK, "the job has no critic")


def test_a_job_that_loads_hugging_face_weights(look: Look) -> None:
    found = results(look(KL, GAE))
    for result in found.values():
        holds(result, Status.OK, "loads no Megatron-Core checkpoint")


def test_no_path(look: Look) -> None:
    key = "actor_rollout_ref.actor.megatron.use_dist_checkpointing"
    holds(actor(look, f"++{key}=true"), Status.FAIL, "there is no dist_checkpointing_path")


def test_not_converted_yet(megatron: Path, look: Look) -> None:
    (megatron / "mcore").rename(megatron / "aside")
    found = actor(look)
    holds(found, Status.FAIL, f"no folder {megatron}/mcore")
    assert found.where == f"{megatron}/recipe.yaml:14"
    assert found.fix == "convert the weights: verl-musa convert recipe tiny"
    with pytest.raises(DataError, match=r"check conversion\.actor failed"):
        require([found])
    (megatron / "mcore.partial").mkdir()
    (megatron / "mcore.partial" / "conversion.partial.json").write_text("{}", encoding="utf-8")
    found = actor(look)
    holds(found, Status.FAIL, "but an interrupted conversion to it")
    assert found.fix.endswith("tiny --resume")


def test_another_folder_than_the_recipe_declares(megatron: Path, look: Look) -> None:
    key = "actor_rollout_ref.actor.megatron.dist_checkpointing_path"
    found = actor(look, f"{key}={megatron}/elsewhere")
    holds(found, Status.FAIL, "no folder")
    assert f"verl-musa convert to-mcore {megatron}/model {megatron}/elsewhere" in found.fix
    convert(megatron / "model", megatron / "elsewhere", pad_vocab=4, dtype="bfloat16")
    holds(actor(look, f"{key}={megatron}/elsewhere"), Status.OK, "11 tensors made from")


def test_assets_that_are_not_made_yet(
    megatron: Path, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (megatron / "make.py").write_text("", encoding="utf-8")
    file = megatron / "recipe.yaml"
    text = file.read_text(encoding="utf-8").replace("${recipe.dir}/", "${assets.dir}/")
    file.write_text(text + "assets: {script: make.py, seed: 1}\n", encoding="utf-8")
    holds(actor(look, assets_ready=False), Status.UNKNOWN, "assets have not been made")


def test_other_weights(megatron: Path, look: Look) -> None:
    config = megatron / "model" / "config.json"
    config.write_text(config.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    holds(actor(look), Status.FAIL, "made from other weights than")
    assert "other config.json" in actor(look).evidence


def test_another_model(megatron: Path, look: Look) -> None:
    write_model(megatron / "model", num_hidden_layers=3)
    holds(actor(look), Status.FAIL, "the checkpoint is not this model's")


def test_other_options_than_declared(megatron: Path, look: Look) -> None:
    file = megatron / "recipe.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('mcore"}', 'mcore", pad_vocab: 4}'), encoding="utf-8")
    holds(actor(look), Status.FAIL, "its vocab_rows is 10, asked for is 12")


def test_the_wrong_head(megatron: Path, look: Look) -> None:
    for output in ("mcore", "critic-mcore"):
        (megatron / output).rename(megatron / f"aside-{output}")
    convert(megatron / "model", megatron / "mcore", value_head=True)
    convert(megatron / "critic", megatron / "critic-mcore")
    found = results(look(GAE))
    holds(found["conversion.actor"], Status.FAIL, "it has a value head and no output layer")
    holds(found["conversion.critic"], Status.FAIL, "its value_head is False, asked for is True")
    # verl leaves the head out when it loads a critic, so a language model's checkpoint does, where nobody asked for more.
    elsewhere = (megatron / "critic-mcore").rename(megatron / "elsewhere")
    found = results(look(GAE, f"critic.megatron.dist_checkpointing_path={elsewhere}"))
    holds(found["conversion.critic"], Status.OK, "with a language model's output layer")


def test_without_a_manifest(megatron: Path, look: Look) -> None:
    (megatron / "mcore" / "conversion.json").unlink()
    found = actor(look)
    holds(found, Status.UNKNOWN, "no conversion.json says what they were made from")
    assert f"verl-musa convert verify {megatron}/model {megatron}/mcore" in found.fix


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".metadata", "the checkpoint has no index"),
        ("metadata.json", "not a Megatron-Core distributed checkpoint"),
        ("common.pt", "no common.pt"),
        ("__0_0.distcp", "a file of the checkpoint is missing"),
    ],
)
def test_a_file_that_is_missing(megatron: Path, look: Look, name: str, said: str) -> None:
    (megatron / "mcore" / name).unlink()
    holds(actor(look), Status.FAIL, said)


def test_files_that_have_changed(megatron: Path, look: Look) -> None:
    data = megatron / "mcore" / "__0_0.distcp"
    size = data.stat().st_size
    os.truncate(data, size + 1)
    holds(actor(look), Status.FAIL, f"__0_0.distcp is {size + 1:,} bytes, was {size:,} bytes")
    os.truncate(data, size - 1)
    holds(actor(look), Status.FAIL, "is truncated")
    os.truncate(data, size)
    index = megatron / "mcore" / ".metadata"
    index.write_bytes(index.read_bytes() + b"\n")
    holds(actor(look), Status.FAIL, ".metadata is another one")
    (megatron / "mcore" / "conversion.json").write_text("{", encoding="utf-8")
    holds(actor(look), Status.FAIL, "the manifest cannot be read")
