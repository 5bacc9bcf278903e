"""Whether trainer and rollout find room beside each other, before anything is started.

On real devices this is arithmetic: what trainer and server keep on one device at the same time, which depends on the placement and
on whether memory is given back between phases. Where the model's sizes are known, every phase of a step is looked at, with activations
and logits (``verl_musa.plan``); else only the states by the weights' size, hence the margins. On the simulator everything lies in the host's memory.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence

from verl_musa.checks import Check, Finding, fail, ok, unknown, warn
from verl_musa.data.arithmetic import data_parallel
from verl_musa.data.placement import ROLLOUT, Pool, is_split, pack, pools, rollout_pool
from verl_musa.data.sizes import CARD_GIB, RUNTIME_GIB, phases, shape_of, trainer_layout
from verl_musa.data.subject import Subject
from verl_musa.plan import GIB, ModelShape, States
from verl_musa.plan.memory import FSDP_GRADIENT, FSDP_OPTIMIZER, FSDP_WEIGHT, GRADIENT, OPTIMIZER, WEIGHT

ACTOR = "actor_rollout_ref.actor"
FRACTION = f"{ROLLOUT}.gpu_memory_utilization"
COMFORT = 0.9
"""Share of a device beyond which states alone leave too little for activations, graphs and the runtime."""

SIM_BASE_GIB, SIM_TRAINER_GIB, SIM_SERVER_GIB, SIM_WORKER_GIB = 4.0, 0.5, 1.2, 0.5
"""Measured with the tiny dense recipe (docs/placement.md), proportional set sizes at the peak: Ray with drivers, queue and agent
loops; one trainer rank; one SGLang server with its three processes; one worker of a rollout pool of its own."""

_ITEM_SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}


def parameters(subject: Subject) -> int | None:
    """Number of the model's parameters, from the headers of its safetensors files; None where there are none to read."""
    total = 0
    for file in sorted(subject.model_path.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
        except (OSError, ValueError, struct.error):
            return None
        total += sum(
            math.prod(entry["shape"])
            for name, entry in header.items()
            if name != "__metadata__" and entry["dtype"] in _ITEM_SIZE
        )
    return total or None


def states_by_size(subject: Subject, count: int) -> States:
    """What the trainer keeps where only the number of parameters is known: all of them spread alike."""
    layout = trainer_layout(subject)
    if layout.megatron:
        held = max(layout.tp, layout.ep) * layout.pp  # nearly all weights of a mixture are experts
        sizes = (WEIGHT * count / held, GRADIENT * count / held, OPTIMIZER * count / layout.world)
    else:
        each = count / layout.world
        sizes = (FSDP_WEIGHT * each, FSDP_GRADIENT * each, FSDP_OPTIMIZER * each)
    return States(*sizes, layout.param_offload, layout.optimizer_offload)


def check_device_memory(subject: Subject) -> Finding:
    """The states of trainer and rollout fit a device, at the time at which they are there together."""
    if subject.resolved.recipe.device.simulated:
        return ok("simulated devices: see placement.host_memory")
    fraction, where = float(subject.select(FRACTION)), subject.where(FRACTION)
    shape = shape_of(subject)
    if shape is not None:
        return _by_phases(subject, shape)
    if (lacking := subject.not_made_yet(subject.model_path)) is not None:
        return lacking
    count = parameters(subject)
    if count is None:
        return unknown("the size of the model's weights cannot be read", "see model.folder", where)
    states = states_by_size(subject, count)
    server = fraction * CARD_GIB
    if is_split(subject):
        shown = (
            f"trainer {states.training / GIB:.1f} GiB, rollout {server:.1f} GiB, of {CARD_GIB:.0f} GiB each"
        )
        most = max(states.training / GIB, server)
        fix = "spread the trainer over more devices, offload, or lower gpu_memory_utilization"
    elif subject.select(f"{ROLLOUT}.free_cache_engine"):
        shown = f"rollout {server:.1f} GiB beside {states.resting / GIB:.1f} GiB of the resting trainer, of {CARD_GIB:.0f} GiB"
        most = max(states.training / GIB, server + states.resting / GIB)
        fix = "lower gpu_memory_utilization, or offload the trainer while the rollout works (param_offload, optimizer_offload)"
    else:
        shown = f"rollout {server:.1f} GiB, kept, beside {states.training / GIB:.1f} GiB of the trainer, of {CARD_GIB:.0f} GiB"
        most = server + states.training / GIB
        fix = (
            "set sglang: {memory_saver: true}, so that the rollout gives its memory back, or placement: split"
        )
    if most > CARD_GIB:
        return fail(shown, fix, where)
    return (
        ok(shown)
        if most <= COMFORT * CARD_GIB
        else warn(f"{shown}: hardly room for anything else", fix, where)
    )


def _by_phases(subject: Subject, shape: ModelShape) -> Finding:
    """The fullest phase against a device; memory outside of ``gpu_memory_utilization`` is the trainer's."""
    where = subject.where(FRACTION)
    if data_parallel(subject) == 0:
        return unknown("the layout does not fit the devices (see cluster.devices)", "", where)
    found = phases(subject, shape)
    fullest = max(found, key=lambda phase: phase.total)
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in fullest.parts)
    shown = f"{fullest.name}: {fullest.total / GIB:.1f} of {CARD_GIB:.0f} GiB ({parts}, runtime about {RUNTIME_GIB:g})"
    if fullest.total <= COMFORT * CARD_GIB * GIB:
        return ok(f"fullest phase is {shown}")
    budget = f"{ACTOR}.ppo_max_token_len_per_gpu"
    if fullest.name not in {"rollout", "weight sync"} and subject.select(f"{ACTOR}.use_dynamic_bsz"):
        where = subject.where(budget)
    fix = (
        "lower gpu_memory_utilization, or put more aside while the rollout works (param_offload, optimizer_offload)"
        if fullest.name in {"rollout", "weight sync"}
        else "lower the token budget, raise a parallel size, recompute, or give the rollout's memory back (sglang: {memory_saver: true})"
    )
    return (fail if fullest.total > CARD_GIB * GIB else warn)(shown, fix, where)


def check_host_memory(subject: Subject) -> Finding:
    """The recipe asks for the host memory that the processes of all simulated devices of its fullest host take."""
    recipe = subject.resolved.recipe
    if not recipe.device.simulated:
        return ok("real devices: see placement.device_memory")
    wanted, cluster = pools(subject), recipe.cluster
    each = math.prod(
        subject.integer(f"{ROLLOUT}.{name}")
        for name in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    )
    # Where they do not fit (which cluster.devices says), one host of each pool.
    hosts = pack(wanted, cluster.nodes, cluster.devices_per_node) or [list(wanted.values())]
    needed, trainers, servers = max(
        _on_host(host, wanted["trainer"], rollout_pool(subject), each) for host in hosts
    )
    shown = f"{trainers} trainer(s) and {servers} server(s) take about {needed:.1f} GiB on a host"
    if cluster.host_memory_gib < needed:
        return warn(f"{shown}; cluster.host_memory_gib is {cluster.host_memory_gib:g}",
                    f"set cluster.host_memory_gib to {math.ceil(needed)}, so that a run on a smaller host is refused",
                    recipe.document.where(("cluster", "host_memory_gib")))  # fmt: skip
    return ok(f"{shown} of {cluster.host_memory_gib:g}")


def _on_host(host: Sequence[Pool], trainer: Pool, rollout: Pool, each: int) -> tuple[float, int, int]:
    """GiB, trainers and servers on a host that has groups of these pools; a server of ``each`` devices may span hosts."""
    trainers = sum(pool.devices for pool in host if pool == trainer)
    servers = math.ceil(sum(pool.devices for pool in host if pool == rollout) / max(each, 1))
    workers = 0 if rollout == trainer else sum(pool.devices for pool in host if pool == rollout)
    needed = SIM_BASE_GIB + SIM_TRAINER_GIB * trainers + SIM_SERVER_GIB * servers + SIM_WORKER_GIB * workers
    return needed, trainers, servers


CHECKS = (
    Check("placement.device_memory", "what trainer and rollout keep on one device", check_device_memory),
    Check("placement.host_memory", "host memory of simulated devices", check_host_memory),
)
