"""How Megatron-Core and the rollout's servers are spread over the devices, and what the model's sizes allow.

The rules are those of Megatron-Core 0.16 (``parallel_state``, ``TransformerConfig``, ``MoELayer``) and of verl 0.9.1, whose workers
make Megatron's groups once a process: critic first, then reference, then actor (``workers/engine/megatron/transformer_impl.py``).
"""

from __future__ import annotations

from verl_musa.checks import Check, Finding, fail, ok, unknown, warn
from verl_musa.data.arithmetic import ACTOR, REF, ROLLOUT
from verl_musa.data.placement import pools, rollout_pool
from verl_musa.data.sizes import CRITIC, needs_critic, needs_reference, shape_of, trainer_layout
from verl_musa.data.subject import Subject
from verl_musa.plan import ModelShape, TrainerLayout

SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
NO_FACTS = "the model's sizes are not known: no config.json, and no model.config in recipe.yaml"
UNEVEN = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
)
"""Options of Megatron-Core that divide layers among the stages in another way than evenly."""


def roles(subject: Subject) -> list[str]:
    """The parts of verl's configuration that a trainer of this recipe is made from."""
    found = [ACTOR]
    if needs_reference(subject):
        found.append(REF)
    if needs_critic(subject):
        found.append(CRITIC)
    return found


def is_megatron(subject: Subject, role: str = ACTOR) -> bool:
    """Whether Megatron-Core trains ``role``."""
    return subject.select(f"{role}.strategy") == "megatron"


def key(role: str, size: str) -> str:
    """Where verl's configuration has a parallel size of ``role``."""
    return f"{role}.megatron.{SIZES[size]}"


def written(subject: Subject, *paths: str) -> str:
    """Where the first of ``paths`` that a file sets was set; else where verl has the first."""
    for path in paths:
        where = subject.where(path)
        if not where.startswith("verl's default"):
            return where
    return subject.where(paths[0])


def _layouts(subject: Subject) -> list[tuple[str, TrainerLayout]]:
    return [(role, trainer_layout(subject, role)) for role in roles(subject) if is_megatron(subject, role)]


def check_world(subject: Subject) -> Finding:
    """The parallel sizes of each Megatron role multiply to the devices, for dense layers and for experts."""
    layouts = _layouts(subject)
    if not layouts:
        return ok(f"the trainer is {subject.select(f'{ACTOR}.strategy')}")
    shape = shape_of(subject)
    for role, layout in layouts:
        wide = layout.tp * layout.pp * layout.cp
        if min(wide, layout.ep, layout.etp) < 1 or layout.world % wide:
            return fail(f"{role}: TP {layout.tp} x PP {layout.pp} x CP {layout.cp} = {wide} does not divide {layout.world} devices",
                        f"choose sizes whose product divides {layout.world}", written(subject, *(key(role, size) for size in ("tp", "pp", "cp"))))  # fmt: skip
        experts = layout.etp * layout.ep * layout.pp
        if shape is not None and shape.experts and layout.world % experts:
            return fail(f"{role}: ETP {layout.etp} x EP {layout.ep} x PP {layout.pp} = {experts} does not divide {layout.world} devices",
                        f"choose sizes whose product divides {layout.world}; ETP is TP where it is not set",
                        written(subject, *(key(role, size) for size in (("etp", "ep", "pp") if layout.etp > 1 else ("ep", "pp")))))  # fmt: skip
    layout = layouts[0][1]
    shown = f"{layout.world} = TP {layout.tp} x PP {layout.pp} x CP {layout.cp} x DP {layout.data_parallel}"
    if shape is not None and shape.experts:
        shown += f"; experts ETP {layout.etp} x EP {layout.ep} x PP {layout.pp} x DP {layout.world // (layout.etp * layout.ep * layout.pp)}"
    return ok(shown)


def check_same_groups(subject: Subject) -> Finding:
    """Critic, reference and actor of one process have the same parallel sizes: Megatron's groups are made once."""
    layouts = _layouts(subject)
    if len(layouts) < 2:  # noqa: PLR2004  (one role shares with nobody)
        return ok("one Megatron role")
    actor = layouts[0][1]
    for role, layout in layouts[1:]:
        for size in SIZES:
            if getattr(layout, size) != getattr(actor, size):
                return fail(
                    f"{key(role, size)} is {getattr(layout, size)}, the actor's is {getattr(actor, size)}: verl makes {role} first, in "
                    "the same process, and the actor then runs with its groups",
                    f"remove the line, or set it to {getattr(actor, size)}",
                    written(subject, key(role, size), key(ACTOR, size)),
                )
    return ok(f"{len(layouts)} roles share their groups")


def check_experts(subject: Subject) -> Finding:  # noqa: PLR0911  (one return an outcome)
    """Experts divide over the devices, and expert parallelism is used on a model that has experts."""
    shape = shape_of(subject)
    if shape is None:
        return unknown(NO_FACTS)
    for role, layout in _layouts(subject):
        where = written(subject, key(role, "ep"))
        if not shape.experts:
            if layout.ep > 1:
                return fail(
                    f"{key(role, 'ep')} is {layout.ep}, and the model is dense",
                    "set it to 1, or remove the line",
                    where,
                )
            continue
        if shape.experts % layout.ep:
            return fail(
                f"{shape.experts} experts do not divide over EP {layout.ep}", "choose a divisor", where
            )
        if shape.expert_ffn % layout.etp:
            return fail(f"experts of width {shape.expert_ffn} do not divide over ETP {layout.etp}", "set ETP to 1",
                        written(subject, key(role, "etp"), key(role, "tp")))  # fmt: skip
    path = f"{ROLLOUT}.expert_parallel_size"
    ranks = subject.integer(path)
    if ranks > 1:
        if not shape.experts:
            return fail(
                f"{path} is {ranks}, and the model is dense",
                "set it to 1, or remove the line",
                subject.where(path),
            )
        replica = subject.integer(f"{ROLLOUT}.tensor_model_parallel_size") * subject.integer(
            f"{ROLLOUT}.data_parallel_size"
        )
        if ranks != replica or shape.experts % ranks:
            return fail(f"{path} is {ranks}; verl takes 1 or TP x DP of the rollout, {replica}, and it has to divide {shape.experts} experts",
                        "set it to 1", subject.where(path))  # fmt: skip
    return ok(
        f"{shape.experts} experts of which {shape.topk} compute a token" if shape.experts else "a dense model"
    )


def check_layers(subject: Subject) -> Finding:
    """Layers divide over pipeline stages, and those over virtual stages."""
    shape = shape_of(subject)
    if shape is None:
        return unknown(NO_FACTS)
    for role, layout in _layouts(subject):
        options = subject.select(f"{role}.megatron.override_transformer_config", {})
        if any(options.get(name) for name in UNEVEN):
            continue
        if shape.layers % layout.pp:
            return fail(f"{shape.layers} layers do not divide over PP {layout.pp}",
                        f"choose a divisor of {shape.layers}, or set num_layers_in_first_pipeline_stage and its like",
                        written(subject, key(role, "pp")))  # fmt: skip
        path = f"{role}.megatron.virtual_pipeline_model_parallel_size"
        virtual = subject.optional_integer(path)
        if virtual is None:
            continue
        if layout.pp == 1:
            return fail(
                f"{path} is {virtual}, and there is one pipeline stage",
                "remove the line, or raise PP",
                subject.where(path),
            )
        if virtual < 1 or (shape.layers // layout.pp) % virtual:
            return fail(f"{shape.layers // layout.pp} layers a stage do not divide over {virtual} virtual stages",
                        "choose a divisor", subject.where(path))  # fmt: skip
    return ok(f"{shape.layers} layers")


def check_recompute(subject: Subject) -> Finding:
    """Recomputation names as many layers as there are, in a way that Megatron-Core accepts."""
    shape = shape_of(subject)
    if shape is None:
        return unknown(NO_FACTS)
    shown = "none"
    for role, layout in _layouts(subject):
        if role == REF:  # it computes no gradients, and takes the actor's options over
            continue
        found = _recompute_problem(
            subject, f"{role}.megatron.override_transformer_config", shape.layers // layout.pp
        )
        if isinstance(found, Finding):
            return found
        shown = found
    return ok(shown)


def _recompute_problem(subject: Subject, block: str, layers: int) -> Finding | str:  # noqa: PLR0911  (one return an outcome)
    """What is wrong with the recomputation of a stage of ``layers``, or what it is."""
    kind, method, count = (
        subject.select(f"{block}.recompute_{name}") for name in ("granularity", "method", "num_layers")
    )
    names = ("recompute_num_layers", "recompute_method", "recompute_granularity")
    where = written(subject, *(f"{block}.{name}" for name in names))
    if kind is None:
        if method is None and count is None:
            return "nothing is recomputed"
        return fail("recompute_method or recompute_num_layers is set, recompute_granularity is not: nothing is recomputed",
                    f"set {block}.recompute_granularity: full, or remove the others", where)  # fmt: skip
    if kind == "selective":
        if method is not None or count is not None:
            return fail("recompute_granularity selective takes neither recompute_method nor recompute_num_layers",
                        "remove them, or set recompute_granularity: full", where)  # fmt: skip
        return "selective"
    if kind != "full" or method not in {"block", "uniform"}:
        return fail(f"recompute_granularity {kind!r} with recompute_method {method!r}",
                    "use full with block or uniform, or selective alone", written(subject, *(f"{block}.{name}" for name in names[1:])))  # fmt: skip
    if not isinstance(count, int) or count < 1:
        return fail(f"recompute_num_layers is {count!r}", f"set it to 1 up to {layers}", where)
    if count > layers:
        return fail(
            f"recompute_num_layers is {count}, a pipeline stage of this model has {layers}",
            f"set it to at most {layers}",
            where,
        )
    if method == "uniform" and layers % count:
        return fail(
            f"units of {count} layers do not divide the {layers} of a stage",
            f"use a divisor of {layers}, such as 1",
            where,
        )
    return (
        f"full, {method}, {count} of {layers} layers a stage"
        if method == "block"
        else f"full, in units of {count} layer(s)"
    )


def check_sequence_parallel(subject: Subject) -> Finding:
    """Sequence parallelism is on where Megatron-Core needs it, and only where it does something."""
    shape = shape_of(subject)
    for role, layout in _layouts(subject):
        path = f"{role}.megatron.sequence_parallel"
        asked = bool(subject.select(path))
        if layout.tp > 1 and not asked:
            if shape is not None and shape.experts and role != REF:
                return fail(f"{role}: experts with TP {layout.tp} and without sequence parallelism, which Megatron-Core refuses in training",
                            f"set {path}: true", written(subject, path, key(role, "tp")))  # fmt: skip
            return warn(f"{role}: TP {layout.tp} without sequence parallelism: each device keeps whole activations between layers",
                        f"set {path}: true", written(subject, path, key(role, "tp")))  # fmt: skip
        if layout.tp == 1 and asked and not subject.where(path).startswith("verl's default"):
            return warn(
                f"{role}: sequence_parallel is true, but TP is 1: verl switches it off",
                f"remove {path}",
                subject.where(path),
            )
    return ok("as tensor parallelism needs it")


def check_vocabulary(subject: Subject) -> Finding:
    """The vocabulary divides over tensor-parallel ranks: verl pads none."""
    shape = shape_of(subject)
    if shape is None:
        return unknown(NO_FACTS)
    for role, layout in _layouts(subject):
        if shape.vocab % layout.tp:
            return fail(
                f"a vocabulary of {shape.vocab} does not divide over TP {layout.tp}",
                "choose a divisor",
                written(subject, key(role, "tp")),
            )
    return ok(f"{shape.vocab} tokens")


def check_hosts(subject: Subject) -> Finding:
    """Groups that talk all the time stay within a host."""
    node = pools(subject)["trainer"].devices
    shape = shape_of(subject)
    for role, layout in _layouts(subject):
        if layout.tp > node:
            return warn(f"{role}: TP {layout.tp} over hosts of {node} devices: every layer waits for the network",
                        f"keep TP at {node} or below", written(subject, key(role, "tp")))  # fmt: skip
        if shape is not None and shape.experts and layout.etp * layout.ep > node:
            return warn(f"{role}: ETP {layout.etp} x EP {layout.ep} over hosts of {node} devices: tokens travel to their experts over the network",
                        f"keep ETP x EP at {node} or below", written(subject, key(role, "ep")))  # fmt: skip
    return ok(f"tensor and expert parallelism stay within {node} devices")


def check_rollout_heads(subject: Subject) -> Finding:
    """A server's widths divide over its devices."""
    shape = shape_of(subject)
    if shape is None:
        return unknown(NO_FACTS)
    path = f"{ROLLOUT}.tensor_model_parallel_size"
    ranks = subject.integer(path)
    found = _width_problem(shape, ranks)
    if found:
        return fail(
            f"{found} over {ranks} devices of a server", f"choose another {path}", subject.where(path)
        )
    world = rollout_pool(subject).world
    replica = ranks * subject.integer(f"{ROLLOUT}.data_parallel_size")
    return ok(
        f"{world} = TP {ranks} x DP {world // ranks if ranks else 0} ({world // max(replica, 1)} servers)"
    )


def _width_problem(shape: ModelShape, ranks: int) -> str | None:
    widths = {
        "vocabulary": shape.vocab,
        "expert width" if shape.experts else "MLP width": shape.expert_ffn or shape.ffn,
    }
    uneven = [f"{name} {width}" for name, width in widths.items() if ranks < 1 or width % ranks]
    return f"{' and '.join(uneven)} not divisible" if uneven else None


CHECKS = (
    Check("layout.world", "devices = product of the parallel sizes, for each Megatron role", check_world),
    Check("layout.groups", "parallel sizes of critic and reference against the actor's", check_same_groups),
    Check("layout.experts", "expert parallelism against the model's experts", check_experts),
    Check("layout.layers", "layers over pipeline stages", check_layers),
    Check("layout.recompute", "recomputed layers against the model's", check_recompute),
    Check("layout.sequence", "sequence parallelism against tensor parallelism", check_sequence_parallel),
    Check("layout.vocabulary", "vocabulary over tensor-parallel ranks", check_vocabulary),
    Check("layout.hosts", "groups that should stay within a host", check_hosts),
    Check("layout.rollout", "widths of the model over the devices of a server", check_rollout_heads),
)
