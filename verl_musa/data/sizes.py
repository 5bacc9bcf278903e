"""From a recipe's configuration to the numbers that ``plan`` computes with."""

from __future__ import annotations

from dataclasses import dataclass

from verl_musa.data.arithmetic import ACTOR, REF, ROLLOUT
from verl_musa.data.placement import pools, rollout_pool
from verl_musa.data.subject import Subject
from verl_musa.plan import (
    GIB,
    ModelShape,
    ServerLayout,
    States,
    TrainerLayout,
    Work,
    trainer_states,
    trainer_work,
)
from verl_musa.plan import server_memory as memory_of_server

CARD_GIB = 80.0
"""Memory of an S5000: 81920 MiB by mthreads-gmi."""

RUNTIME_GIB = 4.0
"""Contexts, communicators' buffers and fragmentation of trainer and server together. A guess: nobody has measured it here."""

CRITIC = "critic"


def shape_of(subject: Subject) -> ModelShape | None:
    """The policy's sizes; None where neither config.json nor recipe.yaml tells them."""
    config = subject.model_config()
    return None if config is None else ModelShape.from_config(config)


def needs_reference(subject: Subject) -> bool:
    """Whether verl makes a reference model."""
    return bool(subject.select("algorithm.use_kl_in_reward") or subject.select(f"{ACTOR}.use_kl_loss"))


def needs_critic(subject: Subject) -> bool:
    """Whether verl makes a critic."""
    enabled = subject.select(f"{CRITIC}.enable")
    return bool(enabled) if enabled is not None else subject.select("algorithm.adv_estimator") == "gae"


def trainer_layout(subject: Subject, role: str = ACTOR) -> TrainerLayout:
    """How the trainer of ``role`` (actor, reference or critic) is spread.

    Raises:
        DataError: a size is not an integer.
    """
    strategy, world = str(subject.select(f"{role}.strategy")), pools(subject)["trainer"].world
    if strategy != "megatron":
        block = f"{role}.{'fsdp' if role == CRITIC else 'fsdp_config'}"
        outer = subject.optional_integer(f"{role}.ulysses_sequence_parallel_size") or 1
        inner = subject.optional_integer(f"{block}.ulysses_sequence_parallel_size") or 1
        return TrainerLayout(
            strategy=strategy,
            world=world,
            cp=max(outer, inner),
            recompute=bool(subject.select("actor_rollout_ref.model.enable_gradient_checkpointing")),
            **_offload(subject, block),
        )
    block = f"{role}.megatron"

    def size(name: str) -> int:
        return subject.optional_integer(f"{block}.{name}_parallel_size") or 1

    optimizer = f"{role}.optim.override_optimizer_config"
    on_host = bool(subject.select(f"{optimizer}.optimizer_cpu_offload"))
    return TrainerLayout(
        strategy=strategy,
        world=world,
        tp=size("tensor_model"),
        pp=size("pipeline_model"),
        cp=size("context"),
        ep=size("expert_model"),
        etp=subject.optional_integer(f"{block}.expert_tensor_parallel_size") or size("tensor_model"),
        sequence_parallel=bool(subject.select(f"{block}.sequence_parallel")) and size("tensor_model") > 1,
        recompute=subject.select(f"{block}.override_transformer_config.recompute_granularity") == "full",
        host_optimizer=float(subject.select(f"{optimizer}.optimizer_offload_fraction", 0.0)) * on_host,
        **_offload(subject, block),
    )


def _offload(subject: Subject, block: str) -> dict[str, bool]:
    return {name: bool(subject.select(f"{block}.{name}")) for name in ("param_offload", "optimizer_offload")}


def server_layout(subject: Subject) -> ServerLayout:
    """How the rollout's servers are spread.

    Raises:
        DataError: a size is not an integer.
    """
    devices = 1
    for name in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
        devices *= subject.integer(f"{ROLLOUT}.{name}")
    return ServerLayout(
        devices=max(devices, 1),
        replicas=rollout_pool(subject).world // max(devices, 1),
        fraction=float(subject.select(f"{ROLLOUT}.gpu_memory_utilization")),
        device_gib=CARD_GIB,
    )


def micro_batch_tokens(subject: Subject, *, backward: bool) -> int:
    """Most tokens of one micro-batch of the actor, over all context-parallel ranks.

    Raises:
        DataError: a size is not an integer.
    """
    longest = subject.integer(f"{ROLLOUT}.prompt_length") + subject.integer(f"{ROLLOUT}.response_length")
    if subject.select(f"{ACTOR}.use_dynamic_bsz"):
        path = (
            f"{ACTOR}.ppo_max_token_len_per_gpu" if backward else f"{ROLLOUT}.log_prob_max_token_len_per_gpu"
        )
        return subject.integer(path) * trainer_layout(subject).cp
    name = (
        f"{ACTOR}.ppo_micro_batch_size_per_gpu"
        if backward
        else f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
    )
    return longest * (subject.optional_integer(name) or 1)


@dataclass(frozen=True)
class Phase:
    """What is on the fullest device in one phase of a step.

    Attributes:
        name: of the phase.
        parts: (what, bytes), largest users first as they come.
    """

    name: str
    parts: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """Bytes in all, runtime included."""
        return sum(size for _, size in self.parts) + RUNTIME_GIB * GIB


def phases(subject: Subject, shape: ModelShape) -> list[Phase]:
    """Memory of the fullest device, phase by phase; for a split placement those of both pools.

    Raises:
        DataError: a size is not an integer.
    """
    split = subject.resolved.recipe.placement == "split"
    frees = bool(subject.select(f"{ROLLOUT}.free_cache_engine"))
    server = memory_of_server(shape, server_layout(subject))
    states = _all_states(subject, shape)
    resting = {name: state.resting for name, state in states.items() if not split}
    kept = 0.0 if frees or split else server.total
    found = [
        Phase(
            "rollout", (("weights", server.weights), ("cache", server.cache), *_named(resting, "kept by {}"))
        )
    ]
    for name in states:
        others = {other: state.resting for other, state in states.items() if other != name}
        shared = (*_named(others, "kept by {}"), ("kept by rollout", kept))
        work = trainer_work(
            shape, trainer_layout(subject), micro_batch_tokens(subject, backward=False), backward=False
        )
        inferring = (("states", states[name].inferring), *_work(work), *shared)
        found.append(Phase(f"{name}, no gradients", tuple(part for part in inferring if part[1])))
        if name != "reference":
            work = trainer_work(
                shape, trainer_layout(subject), micro_batch_tokens(subject, backward=True), backward=True
            )
            training = (("states", states[name].training), *_work(work), *shared)
            found.append(Phase(f"{name}, update", tuple(part for part in training if part[1])))
    if not split:
        # Weights go over in buckets; the trainer's are on the device, the server's cache not yet.
        found.append(
            Phase(
                "weight sync",
                (("states", states["actor"].weights), ("rollout's weights", max(server.weights, kept))),
            )
        )
    return found


def _all_states(subject: Subject, shape: ModelShape) -> dict[str, States]:
    found = {"actor": trainer_states(shape, trainer_layout(subject))}
    if needs_reference(subject):
        weights = trainer_states(shape, trainer_layout(subject, REF))
        found["reference"] = States(
            weights.weights, 0.0, 0.0, weights.param_offload, weights.optimizer_offload
        )
    if needs_critic(subject):
        found["critic"] = trainer_states(shape, trainer_layout(subject, CRITIC))
    return found


def _named(sizes: dict[str, float], form: str) -> tuple[tuple[str, float], ...]:
    return tuple((form.format(name), size) for name, size in sizes.items() if size)


def _work(work: Work) -> tuple[tuple[str, float], ...]:
    return (("activations", work.activations), ("logits", work.logits))
