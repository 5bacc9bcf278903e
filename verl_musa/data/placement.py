"""Where trainer and rollout run - on the same devices, or on pools of their own - and what each choice needs.

``colocated`` is verl's hybrid engine: one pool, servers and trainer take turns on each device, weights are handed over on it.
``split`` is verl's ``separate_async`` trainer without hybrid replicas: the servers' pool is their own, and weights travel
through a checkpoint engine. The rules are those of verl 0.9.1's ``trainer/ppo/v1``, ``single_controller/ray/base.py``,
``workers/rollout/{replica,llm_server}.py`` and ``checkpoint_engine``. Memory is looked at in ``placement_memory``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verl_musa.checks import Check, Finding, fail, ok, warn
from verl_musa.data.subject import Subject

ROLLOUT = "actor_rollout_ref.rollout"
HYBRID = "actor_rollout_ref.hybrid_engine"
ENGINE = f"{ROLLOUT}.checkpoint_engine"
MODE = "trainer.v1.trainer_mode"
SEPARATE = "trainer.v1.separate_async"
SPLIT = "split"
SPLIT_MODE = "separate_async"
COLOCATED_MODES = ("sync", "colocate_async")
NAIVE = "naive"
OWN_ENGINE = "mccl"
CUDA_ENGINES = {
    "nccl": "cupy and CUDA device strings",
    "nixl": "cupy and the nixl package",
    "delta_sharded": "cupy",
    "kimi_ckpt_engine": "the checkpoint_engine package and NCCL",
}
"""verl's other engines -> what they need that a MUSA host does not have."""


@dataclass(frozen=True)
class Pool:
    """One of verl's resource pools.

    Attributes:
        nodes: hosts.
        devices: on each of them.
        cpus: logical CPUs that Ray reserves with each device (``max_colocate_count``).
        prefix: where verl's ``nnodes`` and ``n_gpus_per_node`` of it are.
    """

    nodes: int
    devices: int
    cpus: int
    prefix: str

    @property
    def world(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices


def is_split(subject: Subject) -> bool:
    """Whether the recipe wants trainer and rollout on pools of their own."""
    return subject.resolved.recipe.placement == SPLIT


def pools(subject: Subject) -> dict[str, Pool]:
    """The pools that verl makes, by name.

    Raises:
        DataError: a size is not an integer.
    """
    found = {"trainer": _pool(subject, "trainer", cpus=3)}
    if is_split(subject):
        found["rollout"] = _pool(subject, ROLLOUT, cpus=2)
    reward = "reward.reward_model"
    if subject.select(f"{reward}.enable") and subject.select(f"{reward}.enable_resource_pool"):
        found["reward"] = _pool(subject, reward, cpus=3)
    return found


def rollout_pool(subject: Subject) -> Pool:
    """The pool that the rollout's servers run on: their own, or the trainer's."""
    return pools(subject)["rollout" if is_split(subject) else "trainer"]


def _pool(subject: Subject, prefix: str, *, cpus: int) -> Pool:
    return Pool(
        subject.integer(f"{prefix}.nnodes"), subject.integer(f"{prefix}.n_gpus_per_node"), cpus, prefix
    )


def pack(wanted: Mapping[str, Pool], nodes: int, devices: int) -> list[list[Pool]] | None:
    """Give each host of each pool a place, largest first, as Ray's STRICT_PACK groups need it; None where one has none.

    Returns:
        For each of ``nodes`` hosts the pools that have a group there.
    """
    hosts: list[list[Pool]] = [[] for _ in range(nodes)]
    groups = sorted(
        (pool for pool in wanted.values() for _ in range(pool.nodes)), key=lambda pool: -pool.devices
    )
    for group in groups:
        fitting = [host for host in hosts if sum(pool.devices for pool in host) + group.devices <= devices]
        if not fitting:
            return None
        # The fullest host that still has room: whole hosts stay free for large groups.
        max(fitting, key=lambda host: sum(pool.devices for pool in host)).append(group)
    return hosts


def check_mode(subject: Subject) -> Finding:  # noqa: PLR0911  (one return an outcome)
    """The trainer of verl is the one that does what the placement says."""
    mode, hybrid = subject.select(MODE), bool(subject.select(HYBRID, default=True))
    if not subject.select("trainer.use_v1", default=True):
        return fail("trainer.use_v1 is false", "remove it: the older trainer knows one placement only",
                    subject.where("trainer.use_v1"))  # fmt: skip
    if not is_split(subject):
        if mode not in COLOCATED_MODES:
            return fail(f"placement is colocated, but trainer_mode is {mode}",
                        f"set {MODE} to sync, or placement: split in recipe.yaml", subject.where(MODE))  # fmt: skip
        if not hybrid:
            return fail("placement is colocated, but hybrid_engine is false, which this trainer does not look at",
                        f"remove {HYBRID}, or set placement: split in recipe.yaml", subject.where(HYBRID))  # fmt: skip
        return ok(f"colocated: {mode}")
    if mode != SPLIT_MODE:
        return fail(f"placement is split, but trainer_mode {mode} runs both on the trainer's devices",
                    f"set {MODE}: {SPLIT_MODE}", subject.where(MODE))  # fmt: skip
    if hybrid:
        return fail("placement is split, but with hybrid_engine verl also starts servers on the trainer's devices",
                    f"set {HYBRID}: false", subject.where(HYBRID))  # fmt: skip
    return ok(f"split: {mode} without hybrid replicas")


def check_pools(subject: Subject) -> Finding:
    """All pools find their devices and CPUs on the cluster's hosts."""
    cluster, wanted = subject.resolved.recipe.cluster, pools(subject)
    shown = ", ".join(f"{name} {pool.nodes} x {pool.devices}" for name, pool in wanted.items())
    for name, pool in wanted.items():
        if pool.nodes < 1 or pool.devices < 1:
            where = subject.where(f"{pool.prefix}.{'nnodes' if pool.nodes < 1 else 'n_gpus_per_node'}")
            return fail(f"the {name} pool has {pool.nodes} x {pool.devices} devices",
                        f"give it at least one: pools.{name} in recipe.yaml", where)  # fmt: skip
    if not is_split(subject) and subject.integer(f"{ROLLOUT}.nnodes"):
        return fail("placement is colocated, but rollout.nnodes asks for a pool of its own, which verl does not make",
                    f"remove {ROLLOUT}.nnodes, or set placement: split", subject.where(f"{ROLLOUT}.nnodes"))  # fmt: skip
    where = subject.resolved.recipe.document.where(("cluster",))
    hosts = pack(wanted, cluster.nodes, cluster.devices_per_node)
    have = f"{cluster.nodes} x {cluster.devices_per_node} devices"
    if hosts is None:
        return fail(f"{shown}: they do not fit {have}",
                    "make the pools smaller or the cluster larger; Ray would wait for ever", where)  # fmt: skip
    cpus = max(sum(pool.cpus * pool.devices for pool in host) for host in hosts)
    if cpus >= cluster.cpus_per_node:
        return fail(f"{shown}: Ray reserves {cpus} of a host's {cluster.cpus_per_node} logical CPUs for their devices",
                    f"set cluster.cpus_per_node to more than {cpus}; they may exceed the real ones", where)  # fmt: skip
    used, total = sum(pool.world for pool in wanted.values()), cluster.nodes * cluster.devices_per_node
    if used < total and subject.resolved.recipe.pools is not None:  # else cluster.devices says so
        return warn(f"{shown}: {total - used} of {total} devices stay idle", "give them to a pool", where)
    return ok(f"{shown} of {have}")


def check_weights(subject: Subject) -> Finding:  # noqa: PLR0911  (one return an outcome)
    """The way that new weights take to the servers fits the placement and the device."""
    backend, where = str(subject.select(f"{ENGINE}.backend")), subject.where(f"{ENGINE}.backend")
    if not is_split(subject):
        if backend != NAIVE:
            return fail(f"checkpoint engine {backend}: a colocated trainer hands weights over on the device, whatever is set",
                        f"remove {ENGINE}.backend", where)  # fmt: skip
        return ok("handed over on the device")
    if backend == NAIVE:
        return fail("checkpoint engine naive hands weights over within one process: two pools have none in common",
                    f"set {ENGINE}.backend: {OWN_ENGINE}", where)  # fmt: skip
    if backend in CUDA_ENGINES:
        return fail(f"checkpoint engine {backend} needs {CUDA_ENGINES[backend]}",
                    f"set {ENGINE}.backend: {OWN_ENGINE}", where)  # fmt: skip
    if backend != OWN_ENGINE:
        return warn(f"checkpoint engine {backend} was never tried on MUSA",
                    f"use {OWN_ENGINE}, or show its weights to arrive with the correctness gate", where)  # fmt: skip
    bucket = subject.integer(f"{ENGINE}.update_weights_bucket_megabytes")
    if bucket < 1:
        key = f"{ENGINE}.update_weights_bucket_megabytes"
        return fail(f"buckets of {bucket} MB", f"set {key} to 1 or more", subject.where(key))
    key = f"{ENGINE}.engine_kwargs.{OWN_ENGINE}"
    transport = str(subject.select(f"{key}.transport", OWN_ENGINE))
    if transport == "gloo" and not subject.resolved.recipe.device.simulated:
        return warn("transport gloo takes weights through host memory and the hosts' network",
                    "remove it where MCCL reaches from one pool to the other", subject.where(f"{key}.transport"))  # fmt: skip
    if not subject.select(f"{key}.checksum", default=True):
        return warn(f"{transport}, buckets of {bucket} MB, without checksums",
                    f"remove {key}.checksum: false", subject.where(f"{key}.checksum"))  # fmt: skip
    return ok(f"{transport}, buckets of {bucket} MB, with checksums")


def check_schedule(subject: Subject) -> Finding:
    """How old the weights may be that sampled what is trained on, and whether the recipe's bounds allow it."""
    if not is_split(subject):
        if subject.select(MODE) == "colocate_async":
            return warn("colocate_async goes on with interrupted samples: one may come from two versions of the weights",
                        f"set {MODE}: sync to stay on policy", subject.where(MODE))  # fmt: skip
        return ok("on policy: verl waits for every sample of a step")
    steps = subject.integer(f"{SEPARATE}.parameter_sync_step")
    batch, mini = (
        subject.integer("data.train_batch_size"),
        subject.integer("actor_rollout_ref.actor.ppo_mini_batch_size"),
    )
    if steps < 1 or batch != steps * mini:
        return fail(f"train_batch_size {batch} is not parameter_sync_step {steps} x ppo_mini_batch_size {mini}",
                    "correct one of the three: verl asserts it", subject.where(f"{SEPARATE}.parameter_sync_step"))  # fmt: skip
    ahead = float(subject.select(f"{SEPARATE}.num_warmup_batches", 0))
    if not ahead and steps == 1:
        return ok("on policy: new weights after every update, no prompts in advance")
    path = f"{SEPARATE}.{'num_warmup_batches' if ahead else 'parameter_sync_step'}"
    old = f"{ahead:g} batch(es) sampled in advance, {steps} update(s) between two syncs"
    fix = f"set num_warmup_batches: 0 and parameter_sync_step: 1 under {SEPARATE}"
    accept = subject.resolved.recipe.accept
    held = [
        name for name in ("rollout_probs_diff_max", "log_ppl_abs_diff_max") if getattr(accept, name, None)
    ]
    if ahead and held:
        bounds = " and ".join(f"accept.{name}" for name in held)
        return fail(f"{old}: probabilities of old weights cannot meet {bounds}",
                    f"{fix}, or remove from recipe.yaml what cannot be met", subject.where(path))  # fmt: skip
    return warn(f"off policy: {old}", f"{fix} to stay on policy", subject.where(path))


def check_reward(subject: Subject) -> Finding:
    """A reward model has devices at the time when it is asked."""
    if not subject.select("reward.reward_model.enable"):
        return ok("no reward model")
    if is_split(subject) and not subject.select("reward.reward_model.enable_resource_pool"):
        path = "reward.reward_model.enable_resource_pool"
        return fail("the reward model shares the trainer's devices, which split placement does not allow: no server pauses there",
                    "give it pools.reward in recipe.yaml", subject.where(path))  # fmt: skip
    return ok(
        "the reward model has a pool" if "reward" in pools(subject) else "it takes turns with the others"
    )


CHECKS = (
    Check("placement.mode", "verl's trainer against the recipe's placement", check_mode),
    Check("placement.pools", "devices and CPUs of verl's pools against the cluster", check_pools),
    Check("placement.weights", "the way of new weights to the servers", check_weights),
    Check("placement.schedule", "age of the weights that sample what is trained on", check_schedule),
    Check("placement.reward", "devices of the reward model", check_reward),
)
