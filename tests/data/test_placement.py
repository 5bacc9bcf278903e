from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data.conftest import Look
from verl_musa.checks import Finding, Status
from verl_musa.data import CHECKS as ALL_CHECKS
from verl_musa.data import placement, placement_memory
from verl_musa.data.arithmetic import check_rollout_parallel
from verl_musa.data.placement import Pool, pack

CHECKS = {check.name: check.function for check in (*placement.CHECKS, *placement_memory.CHECKS)}
ROLLOUT = "actor_rollout_ref.rollout"
ENGINE = f"{ROLLOUT}.checkpoint_engine"
SEPARATE = "trainer.v1.separate_async"
SPLIT = {
    "actor_rollout_ref.hybrid_engine": "false",
    "trainer.v1.trainer_mode": "separate_async",
    f"{SEPARATE}.num_warmup_batches": "0",
    f"{SEPARATE}.parameter_sync_step": "1",
    f"{ENGINE}.backend": "mccl",
    "data.train_batch_size": "8",
}
POOLS = "placement: split\npools: {trainer: {nodes: 1, devices_per_node: 2}, rollout: {nodes: 1, devices_per_node: 1}}\n"


def rewrite(folder: Path, *pairs: tuple[str, str], extra: str = "") -> None:
    file = folder / "recipe.yaml"
    text = file.read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text, f"nothing to replace: {old!r}"
        text = text.replace(old, new)
    file.write_text(text + extra, encoding="utf-8")


@pytest.fixture
def split(folder: Path) -> Path:
    """The folder of a recipe whose rollout has a device of its own, beside the trainer's two."""
    rewrite(folder, ("devices_per_node: 2", "devices_per_node: 3"), extra=POOLS)
    return folder


def real(folder: Path) -> None:
    rewrite(folder, ("simulated: true", "simulated: false"))


def split_found(look: Look, check: str, sets: dict[str, str] | None = None) -> Finding:
    return CHECKS[check](look(*(f"{key}={value}" for key, value in {**SPLIT, **(sets or {})}.items())))


def test_they_are_among_the_checks_of_a_recipe() -> None:
    assert set(CHECKS) <= {check.name for check in ALL_CHECKS}


def test_a_colocated_recipe_has_nothing_wrong(look: Look) -> None:
    for name, function in CHECKS.items():
        assert function(look()).status is Status.OK, name


@pytest.mark.usefixtures("split")
def test_host_memory_of_a_split_recipe(look: Look) -> None:
    assert (
        "2 trainer(s) and 1 server(s) take about 6.7 GiB"
        in split_found(look, "placement.host_memory").evidence
    )


@pytest.mark.usefixtures("split")
def test_a_split_recipe_has_nothing_wrong(look: Look) -> None:
    for name in CHECKS:
        finding = split_found(look, name)
        assert finding.status is Status.OK, (name, finding)


@pytest.mark.parametrize(
    ("check", "sets", "status", "evidence", "where"),
    [
        ("placement.mode", "trainer.v1.trainer_mode=separate_async", "FAIL", "colocated, but", "--set"),
        ("placement.mode", "actor_rollout_ref.hybrid_engine=false", "FAIL", "does not look at", "--set"),
        ("placement.mode", "trainer.use_v1=false", "FAIL", "use_v1 is false", "--set"),
        ("placement.mode", "trainer.v1.trainer_mode=colocate_async", "OK", "colocate_async", ""),
        ("placement.pools", f"{ROLLOUT}.nnodes=1", "FAIL", "a pool of its own", "--set"),
        ("placement.pools", "trainer.n_gpus_per_node=1", "OK", "trainer 1 x 1 of 1 x 2 devices", ""),
        ("placement.pools", "trainer.n_gpus_per_node=3", "FAIL", "do not fit 1 x 2 devices", "recipe.yaml:"),
        ("placement.pools", "trainer.nnodes=0", "FAIL", "0 x 2 devices", "--set"),
        ("placement.weights", f"{ENGINE}.backend=mccl", "FAIL", "whatever is set", "--set"),
        (
            "placement.schedule",
            "trainer.v1.trainer_mode=colocate_async",
            "WARN",
            "interrupted samples",
            "--set",
        ),
        ("placement.reward", "reward.reward_model.enable=true", "OK", "takes turns", ""),
    ],
)
def test_colocated(look: Look, check: str, sets: str, *, status: str, evidence: str, where: str) -> None:
    finding = CHECKS[check](look(sets))
    assert finding.status == status, finding
    assert evidence in finding.evidence
    assert where in finding.where
    assert bool(finding.fix) is (finding.status is not Status.OK)


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize(
    ("check", "sets", "status", "evidence"),
    [
        ("placement.mode", {"trainer.v1.trainer_mode": "sync"}, "FAIL", "runs both on the trainer's devices"),
        ("placement.mode", {"actor_rollout_ref.hybrid_engine": "true"}, "FAIL", "also starts servers"),
        ("placement.pools", {"trainer.n_gpus_per_node": "3"}, "FAIL", "do not fit 1 x 3 devices"),
        ("placement.pools", {f"{ROLLOUT}.n_gpus_per_node": "0"}, "FAIL", "rollout pool has 1 x 0"),
        ("placement.pools", {"trainer.n_gpus_per_node": "1"}, "WARN", "1 of 3 devices stay idle"),
        ("placement.weights", {f"{ENGINE}.backend": "naive"}, "FAIL", "within one process"),
        ("placement.weights", {f"{ENGINE}.backend": "nccl"}, "FAIL", "needs cupy"),
        ("placement.weights", {f"{ENGINE}.backend": "mooncake"}, "WARN", "never tried on MUSA"),
        ("placement.weights", {f"{ENGINE}.update_weights_bucket_megabytes": "0"}, "FAIL", "buckets of 0 MB"),
        (
            "placement.weights",
            {f"+{ENGINE}.engine_kwargs.mccl": "{checksum: false}"},
            "WARN",
            "without checksums",
        ),
        (
            "placement.weights",
            {f"+{ENGINE}.engine_kwargs.mccl": "{transport: gloo}"},
            "OK",
            "gloo, buckets of",
        ),
        ("placement.schedule", {f"{SEPARATE}.parameter_sync_step": "2"}, "FAIL", "is not parameter_sync_st"),
        (
            "placement.schedule",
            {f"{SEPARATE}.parameter_sync_step": "2", "data.train_batch_size": "16"},
            "WARN",
            "2 update(s) between two syncs",
        ),
        ("placement.schedule", {f"{SEPARATE}.num_warmup_batches": "1"}, "WARN", "1 batch(es) sampled in"),
        ("placement.reward", {"reward.reward_model.enable": "true"}, "FAIL", "shares the trainer's devices"),
    ],
)
def test_split(look: Look, check: str, sets: dict[str, str], *, status: str, evidence: str) -> None:
    finding = split_found(look, check, sets)
    assert finding.status == status, finding
    assert evidence in finding.evidence
    assert bool(finding.fix and finding.where) is (finding.status is not Status.OK)


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize(("ranks", "status"), [("1", Status.OK), ("2", Status.FAIL)])
def test_servers_are_held_against_the_rollouts_own_pool(look: Look, ranks: str, status: Status) -> None:
    sets = {**SPLIT, f"{ROLLOUT}.tensor_model_parallel_size": ranks}
    finding = check_rollout_parallel(look(*(f"{key}={value}" for key, value in sets.items())))
    assert finding.status is status, finding


def test_old_weights_contradict_a_bound_on_probabilities(split: Path, look: Look) -> None:
    rewrite(split, extra="accept: {rollout_probs_diff_max: 1.0e-5}\n")
    finding = split_found(look, "placement.schedule", {f"{SEPARATE}.num_warmup_batches": "1"})
    assert finding.status is Status.FAIL
    assert "accept.rollout_probs_diff_max" in finding.evidence


def test_gloo_between_real_pools_is_slow(split: Path, look: Look) -> None:
    real(split)
    finding = split_found(look, "placement.weights", {f"+{ENGINE}.engine_kwargs.mccl": "{transport: gloo}"})
    assert finding.status is Status.WARN
    assert "host memory" in finding.evidence


def test_too_few_cpus_are_named_before_ray_waits_for_ever(split: Path, look: Look) -> None:
    rewrite(split, ("cpus_per_node: 16", "cpus_per_node: 8"))
    finding = split_found(look, "placement.pools")
    assert finding.status is Status.FAIL
    assert "reserves 8 of a host's 8 logical CPUs" in finding.evidence  # 2 x 3 and 1 x 2


@pytest.mark.usefixtures("split")
def test_a_reward_pool_needs_room_too(look: Look) -> None:
    reward = {
        "reward.reward_model.enable": "true",
        "reward.reward_model.enable_resource_pool": "true",
        "reward.reward_model.nnodes": "1",
        "reward.reward_model.n_gpus_per_node": "1",
    }
    finding = split_found(look, "placement.pools", reward)
    assert finding.status is Status.FAIL
    assert "reward 1 x 1: they do not fit" in finding.evidence
    assert split_found(look, "placement.reward", reward).status is Status.OK


def pool(nodes: int, devices: int) -> Pool:
    return Pool(nodes, devices, 3, "trainer")


@pytest.mark.parametrize(
    ("wanted", "nodes", "devices", "fits"),
    [
        ({"trainer": pool(2, 8), "rollout": pool(2, 8)}, 4, 8, True),
        ({"trainer": pool(2, 8), "rollout": pool(2, 8)}, 3, 8, False),
        ({"trainer": pool(1, 4), "rollout": pool(1, 4)}, 1, 8, True),
        ({"trainer": pool(1, 5), "rollout": pool(1, 4)}, 1, 8, False),
        ({"trainer": pool(1, 5), "rollout": pool(1, 4)}, 2, 8, True),
        # Twelve devices are free, but on no host are there eight.
        ({"trainer": pool(2, 6), "rollout": pool(1, 8)}, 2, 10, False),
        ({"trainer": pool(2, 6), "rollout": pool(1, 4)}, 2, 10, True),
        ({"trainer": pool(1, 16)}, 2, 8, False),
    ],
)
def test_pools_are_packed_host_by_host(
    wanted: dict[str, Pool], nodes: int, devices: int, *, fits: bool
) -> None:
    hosts = pack(wanted, nodes, devices)
    assert (hosts is not None) is fits
    if hosts is not None:
        assert all(sum(group.devices for group in host) <= devices for host in hosts)
        assert sum(len(host) for host in hosts) == sum(each.nodes for each in wanted.values())


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the number of parameters that the model folder seems to have."""

    def count(number: int | None) -> None:
        monkeypatch.setattr(placement_memory, "parameters", lambda _: number)

    return count


BILLION = 10**9
KEPT = {f"{ROLLOUT}.free_cache_engine": "false"}
FREED = {f"{ROLLOUT}.free_cache_engine": "true"}


@pytest.mark.parametrize(
    ("count", "sets", "status", "evidence"),
    [
        # 16 bytes a parameter over two devices: 8 B keep 59.6 GiB on each while training, 44.7 GiB of them while resting.
        (8 * BILLION, {**FREED, f"{ROLLOUT}.gpu_memory_utilization": "0.3"}, "OK", "beside 44.7 GiB"),
        (8 * BILLION, {**FREED, f"{ROLLOUT}.gpu_memory_utilization": "0.4"}, "WARN", "hardly room"),
        (8 * BILLION, {**FREED, f"{ROLLOUT}.gpu_memory_utilization": "0.6"}, "FAIL", "rollout 48.0 GiB"),
        (8 * BILLION, {**KEPT, f"{ROLLOUT}.gpu_memory_utilization": "0.3"}, "FAIL", "kept, beside 59.6 GiB"),
        (1 * BILLION, {**KEPT, f"{ROLLOUT}.gpu_memory_utilization": "0.5"}, "OK", "kept, beside 7.5 GiB"),
        (20 * BILLION, {**FREED, f"{ROLLOUT}.gpu_memory_utilization": "0.1"}, "FAIL", "of 80 GiB"),
        (
            8 * BILLION,
            {
                **FREED,
                f"{ROLLOUT}.gpu_memory_utilization": "0.6",
                "actor_rollout_ref.actor.fsdp_config.param_offload": "true",
                "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "true",
            },
            "OK",
            "beside 0.0 GiB of the resting trainer",
        ),
        (None, {}, "UNKNOWN", "cannot be read"),
    ],
)
def test_memory_of_a_colocated_device(
    folder: Path,
    look: Look,
    weights: Any,
    *,
    count: int | None,
    sets: dict[str, str],
    status: str,
    evidence: str,
) -> None:
    real(folder)
    weights(count)
    finding = CHECKS["placement.device_memory"](look(*(f"{key}={value}" for key, value in sets.items())))
    assert finding.status == status, finding
    assert evidence in finding.evidence


@pytest.mark.parametrize(
    ("count", "fraction", "status"),
    [(8 * BILLION, "0.8", "OK"), (8 * BILLION, "0.95", "WARN"), (12 * BILLION, "0.8", "FAIL")],
)
def test_memory_of_split_devices(
    split: Path, look: Look, weights: Any, *, count: int, fraction: str, status: str
) -> None:
    real(split)
    weights(count)
    finding = split_found(look, "placement.device_memory", {f"{ROLLOUT}.gpu_memory_utilization": fraction})
    assert finding.status == status, finding


def test_megatron_keeps_six_bytes_by_model_parallel_rank_and_twelve_by_rank(look: Look) -> None:
    block = "actor_rollout_ref.actor.megatron"
    subject = look(
        "actor_rollout_ref.actor.strategy=megatron",
        f"++{block}.tensor_model_parallel_size=2",
        f"++{block}.pipeline_model_parallel_size=1",
        f"++{block}.expert_model_parallel_size=1",
    )
    states = placement_memory.states_by_size(subject, BILLION)
    assert states.training == pytest.approx(6 * BILLION / 2 + 12 * BILLION / 2)
    assert states.resting == pytest.approx(2 * BILLION / 2 + 12 * BILLION / 2)


def test_parameters_are_counted_from_the_files(folder: Path, look: Look) -> None:
    assert placement_memory.parameters(look()) == 2
    (folder / "model" / "model.safetensors").write_bytes(b"short")
    assert placement_memory.parameters(look()) is None


def test_host_memory_of_simulated_devices(folder: Path, look: Look) -> None:
    assert "2 trainer(s) and 2 server(s)" in CHECKS["placement.host_memory"](look()).evidence
    rewrite(folder, ("host_memory_gib: 8", "host_memory_gib: 4"))
    finding = CHECKS["placement.host_memory"](look())
    assert finding.status is Status.WARN
    assert "recipe.yaml:" in finding.where
    rewrite(folder, ("nodes: 1", "nodes: 2"))
    assert "2 trainer(s) and 2 server(s)" in CHECKS["placement.host_memory"](look()).evidence, "of one host"
    real(folder)
    assert CHECKS["placement.host_memory"](look()).status is Status.OK
