"""The outcomes of each rule that the planted mistakes do not reach; that all is OK is shown by the shipped recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from verl_musa.checks import Result, Status
from verl_musa.data import Subject
from verl_musa.rules import RULES, check_recipe
from verl_musa.rules.columns import check_columns

from .conftest import DENSE, MOE, Plant, Planted, compose_quickly

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{role}" for role in ("actor", "rollout", "ref"))
MEGATRON = f"{ACTOR}.megatron"
FSDP = f"{DENSE}@fsdp2-vllm"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    compose_quickly(monkeypatch)


def results_of(planted: Planted, *sets: str, files: bool = False) -> dict[str, Result]:
    found = check_recipe(planted.resolve(*sets), verl=False, files=files).results
    return {result.check: result for result in found}


class Case(NamedTuple):
    """Options of one run, and what one rule says to them."""

    recipe: str
    sets: tuple[str, ...]
    check: str
    status: Status
    says: str


CASES = [
    Case(MOE, (f"{MEGATRON}.tensor_model_parallel_size=16",), "layout.hosts", Status.WARN, "every layer waits"),
    Case(DENSE, (f"{MEGATRON}.sequence_parallel=false",), "layout.sequence", Status.WARN, "whole activations"),
    Case(DENSE, (f"{MEGATRON}.tensor_model_parallel_size=1",), "layout.sequence", Status.WARN, "switches it off"),
    Case(DENSE, (f"{MEGATRON}.tensor_model_parallel_size=32", f"{ROLLOUT}.tensor_model_parallel_size=32"), "layout.rollout", Status.OK, "TP 32"),
    Case(MOE, (f"{ROLLOUT}.tensor_model_parallel_size=10",), "layout.rollout", Status.FAIL, "vocabulary 151936 and expert width 768 not divisible"),
    Case(DENSE, (f"{MEGATRON}.tensor_model_parallel_size=3",), "layout.vocabulary", Status.FAIL, "151936 does not divide over TP 3"),
    Case(MOE, (f"{MEGATRON}.expert_tensor_parallel_size=5",), "layout.experts", Status.FAIL, "do not divide over ETP 5"),
    Case(DENSE, (f"{ROLLOUT}.expert_parallel_size=2",), "layout.experts", Status.FAIL, "the model is dense"),
    Case(DENSE, (f"{MEGATRON}.pipeline_model_parallel_size=4", f"{MEGATRON}.virtual_pipeline_model_parallel_size=2"), "layout.layers", Status.FAIL, "do not divide over 2 virtual stages"),
    Case(DENSE, (f"{MEGATRON}.pipeline_model_parallel_size=8", f"+{MEGATRON}.override_transformer_config.num_layers_in_first_pipeline_stage=3"), "layout.layers", Status.OK, "36 layers"),
    Case(DENSE, (f"{MEGATRON}.override_transformer_config.recompute_granularity=selective",), "layout.recompute", Status.FAIL, "takes neither"),
    Case(DENSE, (f"{MEGATRON}.override_transformer_config.recompute_num_layers=null",), "layout.recompute", Status.FAIL, "is None"),
    Case(DENSE, (f"{MEGATRON}.override_transformer_config.recompute_method=uniform", f"{MEGATRON}.override_transformer_config.recompute_num_layers=7"), "layout.recompute", Status.FAIL, "units of 7"),
    Case(FSDP, (), "layout.world", Status.OK, "the trainer is fsdp2"),
    Case(FSDP, (), "layout.groups", Status.OK, "one Megatron role"),
    Case(f"{DENSE}@ppo", (f"{ROLLOUT}.n=4",), "tokens.samples", Status.WARN, "only repeat prompts"),
    Case(FSDP, (f"{ROLLOUT}.enable_chunked_prefill=false",), "rollout.prefill", Status.FAIL, "below the longest sample"),
    Case(FSDP, (f"{ROLLOUT}.enable_chunked_prefill=false", f"{ROLLOUT}.max_num_batched_tokens=20000"), "rollout.prefill", Status.OK, "whole prompts"),
    Case(DENSE, (f"{ACTOR}.use_dynamic_bsz=false",), "tokens.dynamic", Status.OK, "fixed micro-batches"),
    Case(DENSE, (f"{MEGATRON}.context_parallel_size=2", f"{ACTOR}.ppo_max_token_len_per_gpu=8704"), "tokens.budget", Status.OK, "longest sample"),
    Case(DENSE, (f"{MEGATRON}.dist_checkpointing_path=null",), "conflict.checkpoint", Status.FAIL, "is not set"),
    Case(DENSE, (f"{MEGATRON}.use_dist_checkpointing=false",), "conflict.checkpoint", Status.FAIL, "the weights come from model.path"),
    Case(DENSE, (f"{MEGATRON}.vanilla_mbridge=false",), "conflict.bridge", Status.WARN, "Python 3.12"),
    Case(FSDP, ("actor_rollout_ref.model.use_remove_padding=false",), "conflict.padding", Status.FAIL, "which verl refuses"),
    Case(FSDP, (f"{ACTOR}.fsdp_config.offload_policy=true", f"{ACTOR}.fsdp_config.param_offload=true"), "conflict.offload", Status.FAIL, "not looked at"),
    Case(DENSE, (f"{ACTOR}.clip_ratio_low=1.5",), "conflict.clip", Status.FAIL, "from -1.5"),
    Case(f"{DENSE}@ppo", (f"{REF}.log_prob_micro_batch_size_per_gpu=4",), "conflict.kl", Status.WARN, "no reference model"),
    Case(f"{DENSE}@ppo", ("algorithm.use_kl_in_reward=true",), "conflict.kl", Status.OK, "in the reward"),
    Case(DENSE, (f"{ROLLOUT}.temperature=0",), "conflict.sampling", Status.FAIL, "every sample of a prompt is the same"),
    Case(DENSE, (f"{ROLLOUT}.val_kwargs.temperature=0",), "conflict.sampling", Status.FAIL, "with temperature 0"),
    Case(DENSE, (f"{ACTOR}.optim.lr_warmup_steps=500",), "conflict.warmup", Status.WARN, "never reached"),
    Case(MOE, (f"{MEGATRON}.router_replay.mode=R3",), "conflict.correction", Status.FAIL, "sends no routes"),
    Case(MOE, (f"{ROLLOUT}.enable_rollout_routing_replay=true",), "conflict.correction", Status.WARN, "does not replay"),
    Case(DENSE, ("critic.enable=true",), "conflict.critic", Status.WARN, "does not use a critic"),
    Case(DENSE, ("critic.optim.lr=1e-5",), "conflict.critic", Status.WARN, "uses no critic"),
    Case(DENSE, (f"+{ROLLOUT}.engine_kwargs.vllm.max_num_seqs=4",), "conflict.engine", Status.WARN, "the rollout is sglang"),
    Case(DENSE, (f"+{ACTOR}.fsdp_config.param_offload=true",), "conflict.engine", Status.WARN, "the trainer is Megatron"),
    Case(DENSE, ("actor_rollout_ref.model.enable_gradient_checkpointing=true",), "conflict.engine", Status.WARN, "is FSDP's"),
    Case(DENSE, (f"{ACTOR}.checkpoint.save_contents=[optimizer]",), "conflict.saving", Status.FAIL, "no weights are saved"),
    Case(DENSE, ("trainer.save_freq=-1",), "conflict.saving", Status.OK, "nothing is saved"),
    Case(DENSE, (f"+{ACTOR}.megatron.override_ddp_config.grad_reduce_in_fp23=true",), "names.ddp", Status.FAIL, "does not exist"),
    Case(FSDP, (f"+{ROLLOUT}.engine_kwargs.vllm.max_num_sequences=4",), "names.vllm", Status.FAIL, "does not exist"),
    Case(FSDP, (), "names.optimizer", Status.OK, "not Megatron's"),
    Case(DENSE, (f"{MEGATRON}.tensor_model_parallel_size=3",), "conversion.possible", Status.FAIL, "cannot run under TP3"),
    Case(FSDP, (), "conversion.possible", Status.OK, "no conversion"),
    Case(DENSE, ("trainer.total_training_steps=null",), "card.time", Status.UNKNOWN, "the length depends on the rows"),
    Case(DENSE, (f"{MEGATRON}.tensor_model_parallel_size=7",), "placement.device_memory", Status.UNKNOWN, "does not fit the devices"),
    Case(MOE, (f"{ACTOR}.ppo_max_token_len_per_gpu=55000",), "placement.device_memory", Status.WARN, "actor, update"),
    Case(MOE, (f"{ROLLOUT}.gpu_memory_utilization=0.99",), "placement.device_memory", Status.FAIL, "rollout"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}-{case.status.value}-{case.says[:20]}")
def test_an_outcome(plant: Plant, case: Case) -> None:
    found = results_of(plant(case.recipe), *case.sets)[case.check]
    assert found.status is case.status, found
    assert case.says in found.evidence
    if case.status in {Status.WARN, Status.FAIL}:
        assert found.fix
        assert found.where


NEED_FACTS = (
    "layout.experts",
    "layout.layers",
    "layout.recompute",
    "layout.vocabulary",
    "layout.rollout",
    "rollout.cache",
    "conversion.facts",
    "conversion.possible",
    "card.memory",
)


def test_without_facts_of_the_model_nothing_is_guessed(plant: Plant) -> None:
    planted = plant(DENSE)
    file = planted.folder / "recipe.yaml"
    text = file.read_text(encoding="utf-8")
    start, end = text.index("  config:\n"), text.index("data:\n")
    file.write_text(text[:start] + text[end:], encoding="utf-8")
    found = results_of(planted)
    assert {name: found[name].status for name in NEED_FACTS} == dict.fromkeys(NEED_FACTS, Status.UNKNOWN)


def test_facts_that_the_folder_contradicts(plant: Plant, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"num_hidden_layers": 28, "hidden_size": 4096}))
    planted = plant(DENSE, "recipe.yaml", "path: ${site.models}/Qwen3-8B", f"path: {model}")
    found = results_of(planted)["conversion.facts"]
    assert found.status is Status.FAIL
    assert "num_hidden_layers is 36, config.json has 28" in found.evidence
    assert found.where.startswith(str(planted.folder / "recipe.yaml:"))


def test_a_padded_vocabulary_that_verl_would_not_read(plant: Plant) -> None:
    planted = plant(DENSE, "recipe.yaml", "dtype: bfloat16}]", "dtype: bfloat16, pad_vocab: 1000}]")
    found = results_of(planted)["conversion.used"]
    assert (found.status, found.where) == (Status.FAIL, planted.where)


@pytest.mark.parametrize(
    ("old", "new", "check", "status", "says"),
    [
        ("  VERL_PLATFORM: musa", "  VERL_PLATFORM: nvidia", "env.needed", Status.FAIL, "the run itself sets musa"),
        ("worker_process_setup_hook: verl_musa.device.guard.on_worker_start", "", "env.needed", Status.WARN, "is not refused"),
        ('  MCCL_CROSS_NIC: "1"', '  MUSA_VISIBLE_DEVICES: "0"', "env.harmful", Status.WARN, "narrows the devices"),
    ],
)  # fmt: skip
def test_the_environment(plant: Plant, *, old: str, new: str, check: str, status: Status, says: str) -> None:
    planted = plant(DENSE, "runtime_env.yaml", old, new)
    found = results_of(planted)[check]
    assert found.status is status
    assert says in found.evidence
    assert found.where == planted.where or not new


@pytest.mark.parametrize(
    ("network", "nodes", "status", "says"),
    [
        ("network: {profile: tcp, interface: eth0}", 4, Status.WARN, "through sockets"),
        ("network: {profile: roce, interface: eth0}", 1, Status.WARN, "one host"),
        ("", 4, Status.FAIL, "no training interface"),
    ],
)
def test_the_network(plant: Plant, network: str, nodes: int, status: Status, says: str) -> None:
    planted = plant(DENSE)
    file = planted.folder / "recipe.yaml"
    lines = [
        (network if line.startswith("network:") else line).replace("nodes: 4", f"nodes: {nodes}")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    found = results_of(planted)["env.network"]
    assert (found.status, bool(found.fix)) == (status, True)
    assert says in found.evidence


def test_an_interface_in_the_environment_will_do(plant: Plant) -> None:
    planted = plant(
        DENSE,
        "runtime_env.yaml",
        '  MCCL_CROSS_NIC: "1"',
        "  MCCL_SOCKET_IFNAME: eth0\n  GLOO_SOCKET_IFNAME: eth0",
    )
    file = planted.folder / "recipe.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("network:")))
    assert results_of(planted)["env.network"].status is Status.OK


def test_what_the_command_line_sets_may_depart_from_the_card(plant: Plant) -> None:
    found = results_of(plant(DENSE), "trainer.total_training_steps=3", f"{ACTOR}.optim.lr=1.0e-5")
    for name in ("card.values", "card.time", "card.memory"):
        assert found[name].status is Status.OK, found[name]
    assert "--set changes trainer.total_training_steps" in found["card.time"].evidence


def test_a_recipe_without_a_card_or_promises(plant: Plant) -> None:
    planted = plant(DENSE)
    (planted.folder / "README.md").unlink()
    file = planted.folder / "recipe.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("expect:")))
    found = results_of(planted)
    assert found["card.values"].status is Status.WARN
    assert found["card.time"].status is Status.OK
    assert found["card.memory"].status is Status.OK


def test_promises_that_leave_no_room(plant: Plant) -> None:
    planted = plant(DENSE, "recipe.yaml", "device_gib: [40, 60]", "device_gib: [40, 79]")
    found = results_of(planted)["card.memory"]
    assert (found.status, found.where) == (Status.WARN, planted.where)


def test_files_wait_where_the_site_does_not_say_where_they_are(plant: Plant) -> None:
    report = check_recipe(plant(DENSE).resolve(), verl=False)
    assert "model.folder" in report.deferred
    assert "data.train.rows" in report.deferred
    assert not {result.check for result in report.results} & set(report.deferred)


def test_every_rule_has_a_name_of_its_own() -> None:
    names = [check.name for check in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("columns", "status"), [(["data_source", "prompt"], Status.OK), (["prompt"], Status.FAIL)]
)
def test_declared_columns(plant: Plant, tmp_path: Path, columns: list[str], status: Status) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({name: ["x"] for name in columns}), file)
    planted = plant(
        DENSE,
        "recipe.yaml",
        "columns: [data_source, prompt, ability, reward_model, extra_info]",
        "columns: [data_source]",
    )
    resolved = planted.resolve(f"data.train_files=[{file}]", f"data.val_files=[{file}]")
    found = check_columns(Subject(resolved))
    assert found.status is status
    if status is Status.FAIL:
        assert found.where == planted.where
        assert "verl-musa data prepare dapo-math-17k" in found.fix
    assert check_columns(Subject(planted.resolve())).status is Status.UNKNOWN
    assert (
        check_columns(Subject(planted.resolve("data.train_files=[/no/such.parquet]"))).status
        is Status.UNKNOWN
    )
