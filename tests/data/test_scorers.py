from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.checks import Finding, Status
from verl_musa.data import scorers
from verl_musa.data.subject import Subject

Look = Callable[..., Subject]
CRITIC, JUDGE = "critic", "reward_model"
CLASSES = {CRITIC: "Qwen3ForTokenClassification", JUDGE: "Qwen3ForSequenceClassification"}
ROLES = pytest.mark.parametrize("role", [CRITIC, JUDGE])


def edit(file: Path, **changes: object) -> None:
    value = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**value, **changes}), encoding="utf-8")


def write_tensors(file: Path, *names: str) -> None:
    entries = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i, name in enumerate(names)
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 * len(names)))


def holds(finding: Finding, status: Status, evidence: str) -> None:
    assert (finding.status, evidence in finding.evidence) == (status, True), finding
    if status in {Status.FAIL, Status.WARN}:
        assert finding.fix
        assert finding.where


@pytest.fixture
def scored(folder: Path) -> Path:
    """The recipe folder with a critic and a reward model in a pool of its own, nothing wrong."""
    for role, name in CLASSES.items():
        shutil.copytree(folder / "model", folder / role)
        edit(folder / role / "config.json", architectures=[name])
    write_tensors(folder / JUDGE / "model.safetensors", "score.bias", "score.weight")
    edit_recipe(folder, lambda text: text.replace("devices_per_node: 2", "devices_per_node: 3"))
    with (folder / "recipe.yaml").open("a", encoding="utf-8") as file:
        for role, name in CLASSES.items():
            file.write(f'{role}: {{path: "${{recipe.dir}}/{role}", architecture: {name}}}\n')
        file.write(
            "pools: {trainer: {nodes: 1, devices_per_node: 2}, reward: {nodes: 1, devices_per_node: 1}}\n"
        )
    with (folder / "config.yaml").open("a", encoding="utf-8") as file:
        file.write("reward.reward_model.rollout.name: sglang\n")
        file.write("reward.reward_model.rollout.tensor_model_parallel_size: 1\n")
    return folder


def edit_recipe(folder: Path, change: Callable[[str], str]) -> None:
    file = folder / "recipe.yaml"
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")


GAE = "algorithm.adv_estimator=gae"


def test_all_right(scored: Path, look: Look) -> None:
    subject = look(GAE)
    findings = {check.name: check.function(subject) for check in scorers.CHECKS}
    assert {name: finding.status for name, finding in findings.items()} == dict.fromkeys(findings, Status.OK)
    assert scorers.used(subject, CRITIC)
    assert f"{scored}/critic" in findings["critic.folder"].evidence
    assert findings["reward_model.head"].evidence == "score.bias is in the weights"
    assert findings["reward_model.placement"].evidence == "1 server(s) of 1 device(s) in a pool of its own"


def test_roles_that_a_job_does_not_have_are_not_looked_at(look: Look) -> None:
    subject = look("algorithm.adv_estimator=grpo")
    for check in scorers.CHECKS:
        holds(
            check.function(subject),
            Status.OK,
            f"the job has no {check.name.partition('.')[0].replace('_', ' ')}",
        )


@pytest.mark.parametrize(("enable", "expected"), [("true", True), ("false", False), ("null", True)])
def test_verls_switch_for_the_critic_wins_over_the_estimator(enable: str, expected: bool, look: Look) -> None:
    assert scorers.used(look(GAE, f"++critic.enable={enable}"), CRITIC) is expected


@ROLES
def test_no_folder(role: str, scored: Path, look: Look) -> None:
    shutil.rmtree(scored / role)
    subject = look(GAE)
    finding = scorers.check_folder(role, subject)
    holds(finding, Status.FAIL, f"no folder {scored}/{role}")
    assert finding.where.startswith(f"{scored}/recipe.yaml:")
    assert f"{role}.path" in finding.fix
    for check in scorers.CHECKS:
        if check.name.startswith(role) and check.name not in {f"{role}.folder", "reward_model.placement"}:
            holds(check.function(subject), Status.UNKNOWN, f"see {role}.folder")


@ROLES
def test_other_architecture(role: str, scored: Path, look: Look) -> None:
    edit(scored / role / "config.json", architectures=["Qwen3ForCausalLM"])
    finding = scorers.check_architecture(role, look(GAE))
    holds(finding, Status.FAIL, f"the recipe is for {CLASSES[role]!r}")
    assert f"{role}.architecture" in finding.fix


@ROLES
def test_damaged_weights(role: str, scored: Path, look: Look) -> None:
    (scored / role / "model.safetensors").write_bytes(b"")
    subject = look(GAE)
    holds(scorers.check_weights(role, subject), Status.FAIL, "shorter than")
    if role == JUDGE:
        holds(scorers.check_reward_head(subject), Status.UNKNOWN, "reward_model.weights")


def test_models_that_recipe_yaml_does_not_name(scored: Path, look: Look) -> None:
    path = scored / "recipe.yaml"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("critic:")]
    path.write_text("\n".join(lines), encoding="utf-8")
    subject = look(GAE, f"critic.model.path={scored}/critic")
    holds(scorers.check_folder(CRITIC, subject), Status.OK, f"{scored}/critic")
    holds(scorers.check_architecture(CRITIC, subject), Status.UNKNOWN, "names no critic")


def test_vocabulary(scored: Path, look: Look) -> None:
    config = scored / CRITIC / "config.json"
    edit(config, vocab_size=3)
    holds(scorers.check_critic_vocabulary(look(GAE)), Status.FAIL, "the critic has 3 embeddings")
    edit(config, vocab_size=None)
    holds(scorers.check_critic_vocabulary(look(GAE)), Status.UNKNOWN, "no vocab_size")
    shutil.rmtree(scored / "model")
    holds(scorers.check_critic_vocabulary(look(GAE)), Status.UNKNOWN, "see model.folder")


def test_reward_models_tokenizer(scored: Path, look: Look) -> None:
    (scored / JUDGE / "tokenizer_config.json").unlink()
    holds(scorers.check_reward_tokenizer(look()), Status.FAIL, "no chat template")


def test_a_head_whose_bias_the_server_would_make_up(scored: Path, look: Look) -> None:
    write_tensors(scored / JUDGE / "model.safetensors", "score.weight")
    holds(scorers.check_reward_head(look()), Status.FAIL, "no score.bias")
    holds(
        scorers.check_reward_head(look("reward.reward_model.rollout.name=vllm")),
        Status.OK,
        "nothing is known",
    )
    edit(scored / JUDGE / "config.json", architectures=["Qwen3ForRewardModel"])
    holds(
        scorers.check_reward_head(look()), Status.OK, "nothing is known against Qwen3ForRewardModel on sglang"
    )


@pytest.mark.usefixtures("scored")
def test_where_the_reward_model_is_served(look: Look) -> None:
    tensor = "reward.reward_model.rollout.tensor_model_parallel_size=2"
    holds(scorers.check_reward_placement(look(tensor)), Status.FAIL, "a server of 2 device(s) in a pool of 1")
    alone = "reward.custom_reward_function.path=null"
    holds(scorers.check_reward_placement(look(alone)), Status.OK, "its score alone is the reward")
    shared = "reward.reward_model.enable_resource_pool=false"
    holds(scorers.check_reward_placement(look(shared)), Status.FAIL, "shares the trainer's devices")
    holds(scorers.check_reward_placement(look(shared, alone)), Status.OK, "its score alone is the reward")


def test_assets_not_made_are_unknown(
    scored: Path, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (scored / "make.py").write_text("", encoding="utf-8")
    edit_recipe(
        scored,
        lambda text: (
            text.replace("${recipe.dir}/", "${assets.dir}/") + "assets: {script: make.py, seed: 1}\n"
        ),
    )
    subject = look(GAE, assets_ready=False)
    for check in scorers.CHECKS:
        if check.name != "reward_model.placement":
            holds(check.function(subject), Status.UNKNOWN, "assets have not been made")
