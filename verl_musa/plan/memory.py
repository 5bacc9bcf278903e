"""Memory of one device: what trainer and rollout keep, and what they need while they work.

Megatron-Core with bfloat16 weights: 2 bytes a parameter for weights, 4 for gradients (reduced in float32, verl's default), 12 for
the distributed optimizer's master weights and two moments, sharded over the data-parallel ranks that share the parameter. Experts
are divided over ETP x EP x PP and their optimizer over the rest; everything else over TP x PP. FSDP: float32 weights and gradients and
AdamW's two moments, all sharded over all devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from verl_musa.plan.model import ModelShape

GIB = 1024**3
WEIGHT, GRADIENT, OPTIMIZER = 2, 4, 12
FSDP_WEIGHT, FSDP_GRADIENT, FSDP_OPTIMIZER = 4, 4, 8
HALF = 2
"""Bytes of a bfloat16 number."""

LOGIT_FORWARD, LOGIT_BACKWARD = 10, 14
"""Bytes a logit: bfloat16 output and two float32 copies for the log-probability; with gradients one float32 more."""

LAYER_WORK = 8
"""Widths of the widest part of one layer that are alive while it is recomputed: inputs, outputs and gradients of its products."""


@dataclass(frozen=True, kw_only=True)
class TrainerLayout:
    """How the trainer is spread, and what it puts aside.

    Attributes:
        strategy: ``megatron``, or any of verl's FSDP kinds.
        world: devices.
        tp: tensor parallel.
        pp: pipeline stages.
        cp: context parallel, or Ulysses with FSDP.
        ep: expert parallel.
        etp: expert tensor parallel.
        sequence_parallel: activations between the tensor-parallel parts are divided too.
        recompute: every layer is computed again in the backward pass.
        param_offload: weights and gradients leave the device while the rollout works.
        optimizer_offload: optimizer states do.
        host_optimizer: share of the optimizer that lives and computes on the host.
    """

    strategy: str
    world: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    recompute: bool = False
    param_offload: bool = False
    optimizer_offload: bool = False
    host_optimizer: float = 0.0

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core trains."""
        return self.strategy == "megatron"

    @property
    def data_parallel(self) -> int:
        """Ranks with samples of their own."""
        return self.world // (self.tp * self.pp * self.cp)


@dataclass(frozen=True)
class States:
    """Bytes that the trainer keeps on its fullest device."""

    weights: float
    gradients: float
    optimizer: float
    param_offload: bool = False
    optimizer_offload: bool = False

    @property
    def training(self) -> float:
        """While it trains."""
        return self.weights + self.gradients + self.optimizer

    @property
    def inferring(self) -> float:
        """While it computes log-probabilities: weights, and what is not put aside."""
        return self.weights + (0.0 if self.optimizer_offload else self.optimizer)

    @property
    def resting(self) -> float:
        """While the rollout works. verl frees gradients with the weights' offload; with FSDP they are freed after each update."""
        weights = 0.0 if self.param_offload else self.weights
        return weights + (0.0 if self.optimizer_offload else self.optimizer)


@dataclass(frozen=True)
class Work:
    """Bytes that one micro-batch needs on the fullest device while it is computed."""

    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Both."""
        return self.activations + self.logits


def trainer_states(shape: ModelShape, layout: TrainerLayout) -> States:
    """What the trainer keeps on its fullest device: with a pipeline the stage that holds an embedding."""
    on_device = 1.0 - layout.host_optimizer
    if not layout.megatron:
        each = shape.total / layout.world
        parts = (FSDP_WEIGHT * each, FSDP_GRADIENT * each, FSDP_OPTIMIZER * each * on_device)
    else:
        stage = math.ceil(shape.layers / layout.pp)
        ends = 1 if layout.pp > 1 or shape.tied else 2
        dense = (stage * shape.dense_layer + ends * shape.embedding) / layout.tp
        experts = stage * shape.expert_layer / (layout.etp * layout.ep)
        owners = layout.world / (layout.tp * layout.pp), layout.world / (layout.etp * layout.ep * layout.pp)
        optimizer = OPTIMIZER * (dense / owners[0] + experts / owners[1])
        parts = (WEIGHT * (dense + experts), GRADIENT * (dense + experts), optimizer * on_device)
    return States(*parts, layout.param_offload, layout.optimizer_offload)


def trainer_work(shape: ModelShape, layout: TrainerLayout, tokens: int, *, backward: bool) -> Work:
    """What a micro-batch of ``tokens`` needs: kept inputs of layers, one layer's inner values, and logits."""
    here = tokens / layout.cp
    divided = layout.tp if layout.sequence_parallel else 1
    widest = (
        shape.topk * (shape.hidden + 2 * shape.expert_ffn)
        if shape.experts
        else (3 * shape.ffn + 2 * shape.hidden)
    )
    # Experts see the tokens of this rank's share of the sequence; a dense MLP is divided by tensor parallelism.
    spread = divided if shape.experts else layout.tp
    layer = LAYER_WORK * HALF * here * widest / spread / (1 if backward else 2)
    kept = 0.0
    if backward:
        stage = math.ceil(shape.layers / layout.pp)
        widths = (
            shape.hidden if layout.recompute else shape.hidden + LAYER_WORK * widest / spread * divided / 2
        )
        kept = HALF * here * widths / divided * stage * (layout.pp if layout.recompute else 1)
    logits = (LOGIT_BACKWARD if backward else LOGIT_FORWARD) * here * shape.vocab / layout.tp
    return Work(kept + layer, logits)


@dataclass(frozen=True, kw_only=True)
class ServerLayout:
    """One rollout server.

    Attributes:
        devices: devices of a replica.
        replicas: replicas.
        fraction: share of a device that weights and cache may take.
        device_gib: memory of a device.
    """

    devices: int
    replicas: int
    fraction: float
    device_gib: float


@dataclass(frozen=True)
class ServerMemory:
    """Bytes on one device of a rollout server, and how many tokens its replica's cache holds."""

    weights: float
    cache: float
    cache_tokens: int

    @property
    def total(self) -> float:
        """Both."""
        return self.weights + self.cache


def server_memory(shape: ModelShape, layout: ServerLayout) -> ServerMemory:
    """Weights in bfloat16 divided over the replica, and a cache in the rest of the server's share."""
    weights = HALF * shape.total / layout.devices
    cache = max(layout.fraction * layout.device_gib * GIB - weights, 0.0)
    # A key/value head is whole on a device: more devices than heads hold copies.
    token = HALF * shape.cache_per_token / min(layout.devices, shape.kv_heads)
    return ServerMemory(weights, cache, int(cache / token))
