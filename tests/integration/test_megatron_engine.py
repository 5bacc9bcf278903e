"""verl's Megatron engine on the simulated device, without Ray: its numbers against Hugging Face, and layouts against one another."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from verl_musa.patching import activation_env

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"
LIMIT_S = 600
STEPS = 4

OPTIONS = {
    "attention_backend": "local",
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
}
EXPERT_OPTIONS = {"moe_grouped_gemm": False, "moe_router_dtype": "fp32"}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EP2 = {"expert_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(2 * LIMIT_S)]


@dataclass(frozen=True)
class Result:
    """What the ranks of one run found, put together.

    Attributes:
        log_probs: of each sample, before the first step; one value a token but the first.
        losses: mean over the data-parallel ranks, one a step.
        grad_norms: one a step.
        weights: file of the exported weights.
        proofs: what each rank proved.
    """

    log_probs: list[list[float]]
    losses: list[float]
    grad_norms: list[float]
    weights: Path
    proofs: list[dict[str, Any]]


Run = Callable[..., Result]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, batch and references, made in a process that nothing patches."""
    folder = tmp_path_factory.mktemp("material")
    subprocess.run(
        [sys.executable, str(JOBS / "hf_reference_job.py"), str(folder)], check=True, timeout=LIMIT_S
    )
    return folder


@pytest.fixture(scope="module")
def run(material: Path, aside: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the engine of a model (``dense`` or ``moe``) in a layout, each distinct run once."""
    if aside.version("megatron-core") is None or aside.version("mbridge") is None:
        pytest.skip("megatron-core and mbridge are not installed here")
    cache: dict[str, Result] = {}

    def run_once(model: str, world: int = 1, *, steps: int = STEPS, **megatron: Any) -> Result:
        more = {name: megatron.pop(name) for name in ("save", "load") if name in megatron}
        key = json.dumps([model, world, steps, megatron, more], sort_keys=True, default=str)
        if key not in cache:
            out = tmp_path_factory.mktemp("engine")
            plan: dict[str, Any] = {
                "world": world,
                "port": _free_port(),
                "model": str(material / model / "model"),
                "batch": str(material / "batch.json"),
                "steps": steps,
                "megatron": _megatron(model, megatron),
                "out": str(out),
                **{name: str(path) for name, path in more.items()},
            }
            (out / "plan.json").write_text(json.dumps(plan))
            _run_ranks(out, world, aside.python_path(ROOT))
            cache[key] = _collect(out)
        return cache[key]

    return run_once


def _megatron(model: str, fields: dict[str, Any]) -> dict[str, Any]:
    options = {**OPTIONS, **(EXPERT_OPTIONS if model == "moe" else {})}
    plain = {"dtype": "float32", "vanilla_mbridge": True, "sequence_parallel": False}
    if model == "moe":
        plain["expert_tensor_parallel_size"] = 1
    return {**plain, "override_transformer_config": options, **fields}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run_ranks(out: Path, world: int, python_path: str) -> None:
    env = {
        **os.environ,
        **activation_env(simulated=True),
        "PYTHONPATH": python_path,
        "VERL_PLATFORM": "musa",
        "VERL_MUSA_RUN_DIR": str(out),
        "MUSA_SIM_DEVICES": "2",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, str(JOBS / "megatron_engine_job.py"), str(out / "plan.json")]
    logs = [out / f"rank{rank}.log" for rank in range(world)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            with log.open("wb") as stream:
                process = subprocess.Popen(
                    [*command, str(rank)], env=env, stdout=stream, stderr=subprocess.STDOUT
                )
            ranks.append(process)
        codes = [process.wait(timeout=LIMIT_S) for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    tails = "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
    assert codes == [0] * world, tails


def _collect(out: Path) -> Result:
    ranks = [json.loads(path.read_text()) for path in out.glob("rank*.json")]
    shares = sorted(ranks, key=lambda found: found["data_rank"])
    return Result(
        # The last value is of a token that is not there.
        log_probs=[row[:-1] for found in shares for row in found["log_probs"]],
        losses=[
            statistics.mean(values) for values in zip(*(found["losses"] for found in shares), strict=True)
        ],
        grad_norms=shares[0]["grad_norms"],
        weights=out / "weights.safetensors",
        proofs=[
            json.loads(path.read_text()) for path in sorted((out / "logs" / "proof").glob("megatron-*.json"))
        ],
    )


def largest_difference(found: list[list[float]], expected: list[list[float]]) -> float:
    """Return the largest absolute difference; all samples and all tokens must be there."""
    assert [len(row) for row in found] == [len(row) for row in expected]
    return max(
        abs(a - b)
        for mine, other in zip(found, expected, strict=True)
        for a, b in zip(mine, other, strict=True)
    )


LAYOUTS = [
    pytest.param("dense", 1, {}, id="dense"),
    pytest.param("dense", 2, TP2, id="dense-tp2"),
    pytest.param("dense", 2, PP2, id="dense-pp2"),
    pytest.param("moe", 1, {}, id="moe"),
    pytest.param("moe", 2, EP2, id="moe-ep2"),
    pytest.param("moe", 2, {**TP2, **EP2}, id="moe-tp2-ep2"),
]


@pytest.mark.parametrize(("model", "world", "layout"), LAYOUTS)
def test_the_first_log_probabilities_are_those_of_hugging_face(
    run: Run, material: Path, model: str, world: int, layout: dict[str, Any]
) -> None:
    expected = json.loads((material / model / "log_probs.json").read_text())
    assert largest_difference(run(model, world, **layout).log_probs, expected) < 5e-6


@pytest.mark.parametrize(("model", "world", "layout"), [each for each in LAYOUTS if each.values[1] == 2])
def test_a_divided_model_trains_as_the_whole_one(
    run: Run, model: str, world: int, layout: dict[str, Any]
) -> None:
    whole, divided = run(model), run(model, world, **layout)
    assert len(whole.losses) == STEPS
    assert whole.losses[-1] < whole.losses[0] - 0.01
    assert divided.losses == pytest.approx(whole.losses, rel=1e-5)
    assert divided.grad_norms == pytest.approx(whole.grad_norms, rel=1e-4)


def test_the_exported_weights_have_the_names_that_were_loaded_and_changed_in_training(
    run: Run, material: Path
) -> None:
    from safetensors.torch import load_file

    before = load_file(material / "moe" / "model" / "model.safetensors")
    after = load_file(run("moe", 2, **EP2).weights)
    assert after.keys() == before.keys()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert {"lm_head.weight", "model.norm.weight", "model.layers.0.mlp.gate.weight"} <= moved
    assert any(".experts.7." in name for name in moved)


def test_a_converted_checkpoint_gives_the_same_log_probabilities(run: Run, material: Path) -> None:
    loaded = run(
        "moe",
        2,
        steps=0,
        **EP2,
        use_dist_checkpointing=True,
        dist_checkpointing_path=str(material / "moe" / "mcore"),
    )
    expected = json.loads((material / "moe" / "log_probs.json").read_text())
    assert largest_difference(loaded.log_probs, expected) < 5e-6


def test_training_goes_on_from_a_checkpoint_in_fresh_processes(run: Run, tmp_path: Path) -> None:
    role = tmp_path / "global_step_2" / "actor"
    run("moe", 2, steps=2, **EP2, save=role)
    resumed = run("moe", 2, steps=2, **EP2, load=role)
    assert resumed.losses == pytest.approx(run("moe", 2, **EP2).losses[2:], rel=1e-6)
    assert (role / "ckpt_contents.json").is_file()
    assert all((role / kind / "dist_ckpt" / "metadata.json").is_file() for kind in ("optimizer", "extra"))


def test_each_rank_proves_device_backend_and_its_groups(run: Run) -> None:
    proofs = run("moe", 2, **{**TP2, **EP2}).proofs
    assert [proof["rank"] for proof in sorted(proofs, key=lambda proof: proof["rank"])] == [0, 1]
    for proof in proofs:
        assert (proof["device"], proof["backend"], proof["simulated"]) == ("musa", "mccl", True)
        assert proof["device_index"] == proof["rank"]
        sizes = {"tensor": 2, "pipeline": 1, "context": 1, "expert": 2, "expert_tensor": 1, "data": 1}
        assert proof["parallel"] == sizes
