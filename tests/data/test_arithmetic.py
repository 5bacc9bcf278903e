from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_musa.checks import Finding, Status, run_checks
from verl_musa.data import arithmetic as a
from verl_musa.data.subject import Subject

Look = Callable[..., Subject]
Function = Callable[[Subject], Finding]

ACTOR, ROLLOUT, REF = a.ACTOR, a.ROLLOUT, a.REF
MEGATRON = ("model_engine=megatron", f"{ACTOR}.strategy=megatron")


def test_all_right(look: Look) -> None:
    results = run_checks(a.CHECKS, look())
    assert {result.check: result.status for result in results} == {
        check.name: Status.OK for check in a.CHECKS
    }


CASES: list[tuple[Function, tuple[str, ...], Status, str]] = [
    (a.check_required, (f"{ROLLOUT}.name=???",), Status.FAIL, f"{ROLLOUT}.name is ???"),
    (
        a.check_devices,
        ("trainer.n_gpus_per_node=4",),
        Status.FAIL,
        "n_gpus_per_node is 4, the recipe's cluster has 2",
    ),
    (a.check_devices, ("trainer.nnodes=0",), Status.FAIL, "trainer.nnodes is 0"),
    (a.check_devices, ("trainer.n_gpus_per_node=1",), Status.WARN, "1 of the cluster's 2 devices"),
    (a.check_devices, (f"{ACTOR}.ulysses_sequence_parallel_size=3",), Status.FAIL, "not a multiple"),
    (
        a.check_devices,
        (*MEGATRON, f"{ACTOR}.megatron.tensor_model_parallel_size=2"),
        Status.OK,
        "1 data-parallel",
    ),
    (
        a.check_devices,
        (*MEGATRON, f"{ACTOR}.megatron.pipeline_model_parallel_size=4"),
        Status.FAIL,
        "not a multiple",
    ),
    (
        a.check_batch,
        ("data.train_batch_size=4",),
        Status.FAIL,
        "train_batch_size 4 is below ppo_mini_batch_size 8",
    ),
    (
        a.check_batch,
        ("data.train_batch_size=9", f"{ROLLOUT}.n=1"),
        Status.FAIL,
        "9 x n 1 is not a multiple of 2",
    ),
    (a.check_batch, ("data.train_batch_size=12",), Status.WARN, "no multiple of ppo_mini_batch_size 8"),
    (
        a.check_batch,
        (f"{ACTOR}.ppo_mini_batch_size=3", f"{ROLLOUT}.n=1"),
        Status.FAIL,
        "3 x n 1 does not divide by 2",
    ),
    (a.check_batch, (f"{ROLLOUT}.n=0",), Status.FAIL, "n 0"),
    (a.check_batch, (f"{ACTOR}.ulysses_sequence_parallel_size=3",), Status.UNKNOWN, "ranks is not known"),
    (
        a.check_micro_batch,
        (f"{ACTOR}.ulysses_sequence_parallel_size=3",),
        Status.UNKNOWN,
        "ranks is not known",
    ),
    (
        a.check_micro_batch,
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=3",),
        Status.FAIL,
        "does not divide the 16",
    ),
    (a.check_micro_batch, (f"{ACTOR}.ppo_micro_batch_size_per_gpu=null",), Status.FAIL, "is not set"),
    (a.check_micro_batch, (f"{ACTOR}.ppo_micro_batch_size=8",), Status.FAIL, "deprecated it and refuses it"),
    (a.check_micro_batch, (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=null",), Status.FAIL, "is not set"),
    (
        a.check_micro_batch,
        (f"{ACTOR}.use_kl_loss=true",),
        Status.FAIL,
        f"{REF}.log_prob_micro_batch_size_per_gpu is not",
    ),
    (
        a.check_micro_batch,
        (f"{ACTOR}.use_kl_loss=true", f"{REF}.log_prob_micro_batch_size_per_gpu=16"),
        Status.OK,
        "ref 16",
    ),
    (a.check_micro_batch, (f"{ACTOR}.use_dynamic_bsz=true",), Status.OK, "by token count"),
    (a.check_rollout_parallel, (f"{ROLLOUT}.tensor_model_parallel_size=2",), Status.OK, "1 replica(s) of 2"),
    (a.check_rollout_parallel, (f"{ROLLOUT}.tensor_model_parallel_size=3",), Status.FAIL, "takes 3 devices"),
    (a.check_rollout_parallel, (f"{ROLLOUT}.pipeline_model_parallel_size=2",), Status.FAIL, "take 1 only"),
    (
        a.check_rollout_parallel,
        ("trainer.nnodes=3", f"{ROLLOUT}.tensor_model_parallel_size=3"),
        Status.FAIL,
        "over nodes of 2",
    ),
    (
        a.check_heads,
        (f"{ROLLOUT}.tensor_model_parallel_size=3",),
        Status.FAIL,
        "4 heads do not divide over 3",
    ),
    (
        a.check_heads,
        (*MEGATRON, f"{ACTOR}.megatron.tensor_model_parallel_size=8"),
        Status.FAIL,
        "over 8 ranks",
    ),
    (a.check_lengths, ("data.max_response_length=49",), Status.FAIL, "above the context of 64"),
    (a.check_lengths, ("data.max_response_length=48",), Status.WARN, "fills the context of 64"),
    (a.check_lengths, (f"{ROLLOUT}.max_model_len=65",), Status.FAIL, "above the model's 64 positions"),
    (a.check_lengths, (f"{ROLLOUT}.max_model_len=31",), Status.FAIL, "above the context of 31"),
    (
        a.check_lengths,
        (f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=31"),
        Status.FAIL,
        "31 is below prompt 16 + response 16",
    ),
    (a.check_schedule, ("data.train_batch_size=17",), Status.FAIL, "there are 16 training rows"),
    (a.check_schedule, ("data.train_max_samples=4",), Status.FAIL, "there are 4 training rows"),
    (
        a.check_schedule,
        ("trainer.total_training_steps=0",),
        Status.FAIL,
        "raise trainer.total_training_steps",
    ),
    (a.check_schedule, ("trainer.total_epochs=0",), Status.FAIL, "raise trainer.total_epochs"),
    (
        a.check_schedule,
        ("trainer.total_epochs=1", "trainer.total_training_steps=5"),
        Status.WARN,
        "the rows and epochs give 2",
    ),
    (a.check_schedule, ("trainer.save_freq=2",), Status.OK, "60 steps over 16 rows; saves every 2"),
    (a.check_resume, ("trainer.resume_mode=maybe",), Status.FAIL, "'maybe'"),
    (a.check_resume, ("trainer.resume_mode=resume_path",), Status.FAIL, "resume_from_path is None"),
    (
        a.check_resume,
        ("trainer.resume_mode=resume_path", "trainer.resume_from_path=/x/global_step_2"),
        Status.OK,
        "global_step_2",
    ),
]


@pytest.mark.parametrize(("function", "sets", "status", "evidence"), CASES)
def test_cases(function: Function, sets: tuple[str, ...], status: Status, evidence: str, look: Look) -> None:
    finding = function(look(*sets))
    assert finding.status is status, finding
    assert evidence in f"{finding.evidence} {finding.fix}"
    if status in {Status.FAIL, Status.WARN}:
        assert finding.fix


def test_every_check_has_a_case() -> None:
    assert {function for function, *_ in CASES} | {a.check_cpus} == {check.function for check in a.CHECKS}


@pytest.mark.parametrize("cpus", [6, 7])
def test_cpus(cpus: int, folder: Path, look: Look) -> None:
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        recipe.read_text(encoding="utf-8").replace("cpus_per_node: 16", f"cpus_per_node: {cpus}")
    )
    finding = a.check_cpus(look())
    assert finding.status is (Status.OK if cpus > 6 else Status.FAIL)
    assert cpus > 6 or finding.where == f"{recipe}:10"


def test_where_names_the_option_or_the_line(folder: Path, look: Look) -> None:
    assert a.check_batch(look("data.train_batch_size=4")).where == "--set data.train_batch_size=4"
    (folder / "config.yaml").write_text(
        (folder / "config.yaml")
        .read_text(encoding="utf-8")
        .replace("data.train_batch_size: 8", "data.train_batch_size: 4")
    )
    assert a.check_batch(look()).where == f"{folder}/config.yaml:2"


@pytest.mark.parametrize(
    ("changes", "function", "evidence"),
    [
        ({"num_attention_heads": None}, a.check_heads, "no num_attention_heads"),
        ({"max_position_embeddings": None}, a.check_lengths, "is known"),
        (None, a.check_heads, "no readable config.json"),
        (None, a.check_lengths, "is known"),
    ],
)
def test_unknown(
    changes: dict[str, Any] | None, function: Function, evidence: str, folder: Path, look: Look
) -> None:
    file = folder / "model/config.json"
    if changes is None:
        file.unlink()
    else:
        file.write_text(
            json.dumps({**json.loads(file.read_text(encoding="utf-8")), **changes}), encoding="utf-8"
        )
    finding = function(look())
    assert finding.status is Status.UNKNOWN
    assert evidence in finding.evidence


def test_kv_heads(folder: Path, look: Look) -> None:
    file = folder / "model/config.json"
    changed = {
        **json.loads(file.read_text(encoding="utf-8")),
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
    }
    file.write_text(json.dumps(changed), encoding="utf-8")
    finding = a.check_heads(look(f"{ROLLOUT}.tensor_model_parallel_size=2"))
    assert (finding.status, "3 key/value heads" in finding.evidence) == (Status.FAIL, True)


def test_uncountable_rows(folder: Path, look: Look) -> None:
    (folder / "train.parquet").unlink()
    assert a.check_schedule(look()).status is Status.UNKNOWN


def test_a_value_of_another_type_fails_the_check(look: Look) -> None:
    results = {r.check: r for r in run_checks(a.CHECKS, look("++data.train_batch_size=many"))}
    found = results["batch.size"]
    assert (found.status, found.where) == (Status.FAIL, "--set ++data.train_batch_size=many")
    assert "must be an integer" in found.evidence
