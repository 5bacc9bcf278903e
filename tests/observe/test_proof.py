from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verl_musa.observe.proof import (
    device_actors,
    devices_by_pool,
    mccl_calls,
    plugin_failures,
    read_proofs,
    shared_devices,
    wrong_proofs,
)

EXPECTED = {"device": "musa", "backend": "mccl", "simulated": True}


def write(folder: Path, name: str, **values: Any) -> None:
    (folder / name).write_text(json.dumps(values))


def test_proofs_are_read_and_held_against_the_expectation(tmp_path: Path) -> None:
    write(tmp_path, "actor-1.json", pid=1, device="musa", backend="mccl", simulated=True)
    write(tmp_path, "actor-2.json", pid=2, device="cpu", backend="gloo", simulated=True)
    write(tmp_path, "mccl-1.json", allreduce=2)
    (tmp_path / "actor-3.json").write_text('{"pid": 3, "dev')
    proofs = read_proofs(tmp_path)
    assert [proof["pid"] for proof in proofs] == [1, 2]
    (wrong,) = wrong_proofs(proofs, EXPECTED)
    assert wrong.startswith("actor-2.json: worker 2 ran with device 'cpu' (expected 'musa'), backend 'gloo'")


def test_a_proof_that_leaves_a_field_out_is_wrong(tmp_path: Path) -> None:
    write(tmp_path, "actor-1.json", pid=1, device="musa", simulated=True)
    assert "backend None" in wrong_proofs(read_proofs(tmp_path), EXPECTED)[0]


def test_collectives_are_summed_in_every_form(tmp_path: Path) -> None:
    write(
        tmp_path,
        "mccl-1.json",
        pid=1,
        counters={"allreduce": {"calls": 2, "bytes": 80}, "barrier": {"calls": 1}},
    )
    write(tmp_path, "mccl-2.json", pid=2, rank=0, allreduce=3)
    (tmp_path / "mccl-3.json").write_text("[")
    write(tmp_path, "mccl-4.json", pid=4, counters=None)
    assert mccl_calls(tmp_path) == {"allreduce": 5, "barrier": 1}
    assert mccl_calls(tmp_path / "none") == {}


def test_the_workers_that_own_a_device() -> None:
    actors = [
        {"pid": 1, "state": "ALIVE", "required_resources": {"CPU": 1, "GPU": 0.3}},
        {"pid": 2, "state": "ALIVE", "required_resources": {"CPU": 1}},
        {"pid": 3, "state": "DEAD", "required_resources": {"GPU": 1}},
        {"pid": 4, "state": "ALIVE", "required_resources": {"GPU_group_1_ab": 0.3}},
        {"pid": 5, "state": "ALIVE", "required_resources": None},
    ]
    assert {actor["pid"] for actor in device_actors(actors)} == {1, 4}


def test_every_proof_of_a_worker_counts(tmp_path: Path) -> None:
    write(tmp_path, "actor-1.json", pid=1, device="musa", backend="gloo", simulated=True)
    write(tmp_path, "ref-1.json", pid=1, device="musa", backend="mccl", simulated=True)
    assert len(wrong_proofs(read_proofs(tmp_path), EXPECTED)) == 1


def test_a_plugin_that_did_not_load_says_why(tmp_path: Path) -> None:
    (tmp_path / "failed-7.txt").write_text("ImportError: no torch_musa\n\nTraceback ...\n")
    assert plugin_failures(tmp_path) == ["failed-7.txt: ImportError: no torch_musa"]


def worker(role: str, device: str | None, node: str = "n1") -> dict[str, Any]:
    return {"role": role, "node": node, "accelerators": [] if device is None else [device]}


def test_devices_are_told_apart_by_pool_and_host() -> None:
    proofs = [
        worker("fsdp-language_model", "0"),
        worker("fsdp-language_model", "1"),
        worker("rollout-worker", "2"),
        worker("rollout-worker", "0", node="n2"),
        worker("reward-worker", "3"),
        worker("sglang-server", None),
    ]
    rollout = {"rollout": ["n1:2", "n2:0"], "reward": ["n1:3"]}
    assert devices_by_pool(proofs) == {"trainer": ["n1:0", "n1:1"], **rollout}
    assert shared_devices(proofs) == []


def test_a_device_of_both_pools_is_named() -> None:
    proofs = [worker("fsdp-language_model", "0"), worker("rollout-worker", "0")]
    assert shared_devices(proofs) == ["n1:0"]


def test_what_the_weights_left_behind_is_no_proof(tmp_path: Path) -> None:
    write(tmp_path, "weights-7.json", role="weights-sender", rank=0, syncs=[])
    assert read_proofs(tmp_path) == []
