"""Arithmetic of batch sizes, parallelism and lengths that verl 0.9.1 asserts only after minutes of start-up.

The rules are those of verl's ``utils/config.py`` (validate_config), ``workers/engine_workers.py``,
``workers/engine/utils.py`` (prepare_micro_batches), ``workers/rollout/replica.py`` and ``trainer/ppo/v1``.
"""

from __future__ import annotations

import math

from verl_musa.checks import Check, Finding, fail, ok, unknown, warn
from verl_musa.data.parquet import count_rows
from verl_musa.data.placement import rollout_pool
from verl_musa.data.subject import Subject
from verl_musa.recipe.resolution import OPEN

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
CPUS_PER_DEVICE = 3
"""CPUs that verl's placement groups ask for with each device (``max_colocate_count``)."""

_REQUIRED = (f"{ACTOR}.strategy", f"{ROLLOUT}.name")


def check_required(subject: Subject) -> Finding:
    """The values that verl leaves open are given."""
    missing = [path for path in _REQUIRED if subject.select(path) is None]
    if missing:
        return fail(f"{missing[0]} is {OPEN}", f"set {missing[0]} in config.yaml")
    return ok(", ".join(f"{path.rpartition('.')[2]} {subject.select(path)}" for path in _REQUIRED))


def data_parallel(subject: Subject) -> int:
    """Number of data-parallel ranks of the actor; 0 where the devices do not divide."""
    if subject.select(f"{ACTOR}.strategy") == "megatron":
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        ranks = math.prod(subject.integer(f"{ACTOR}.megatron.{name}") for name in names)
    else:
        ranks = sequence_ranks(subject)
    return subject.world // ranks if ranks and subject.world % ranks == 0 else 0


def sequence_ranks(subject: Subject) -> int:
    """Devices of the actor that share one sequence: context parallel with Megatron, Ulysses with FSDP."""
    if subject.select(f"{ACTOR}.strategy") == "megatron":
        return subject.optional_integer(f"{ACTOR}.megatron.context_parallel_size") or 1
    outer = subject.optional_integer(f"{ACTOR}.ulysses_sequence_parallel_size") or 1
    return max(outer, subject.optional_integer(f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size") or 1)


def check_devices(subject: Subject) -> Finding:
    """The job's devices fit the recipe's cluster and the actor's parallelism."""
    cluster = subject.resolved.recipe.cluster
    for path, have in (
        ("trainer.nnodes", cluster.nodes),
        ("trainer.n_gpus_per_node", cluster.devices_per_node),
    ):
        asked = subject.integer(path)
        if asked < 1 or asked > have:
            return fail(
                f"{path} is {asked}, the recipe's cluster has {have}", "correct it", subject.where(path)
            )
    if data_parallel(subject) == 0:
        return fail(
            f"{subject.world} devices are not a multiple of the actor's model-parallel ranks",
            "correct the tensor, pipeline, context or sequence parallel sizes of the actor",
            subject.where(f"{ACTOR}.strategy"),
        )
    # Several pools share the cluster: placement.pools counts them.
    if subject.resolved.recipe.pools is None and cluster.nodes * cluster.devices_per_node != subject.world:
        return warn(
            f"{subject.world} of the cluster's {cluster.nodes * cluster.devices_per_node} devices are used",
            "change cluster in recipe.yaml if that is not meant",
            subject.where("trainer.n_gpus_per_node"),
        )
    return ok(f"{subject.world} devices, {data_parallel(subject)} data-parallel ranks")


def check_cpus(subject: Subject) -> Finding:
    """Ray can place the job: each device's bundle asks for three CPUs, and the drivers need some too."""
    cluster = subject.resolved.recipe.cluster
    needed = CPUS_PER_DEVICE * subject.integer("trainer.n_gpus_per_node")
    where = subject.resolved.recipe.document.where(("cluster", "cpus_per_node"))
    if cluster.cpus_per_node <= needed:
        return fail(
            f"{cluster.cpus_per_node} logical CPUs a node; the placement groups alone ask for {needed}",
            f"set cluster.cpus_per_node to more than {needed}; they are logical and may exceed the real ones",
            where,
        )
    return ok(f"{cluster.cpus_per_node} logical CPUs a node, {needed} of them in placement groups")


def check_batch(subject: Subject) -> Finding:  # noqa: PLR0911  (one return an outcome)
    """Prompts a step, and how they split into mini-batches over the ranks."""
    size, count = subject.integer("data.train_batch_size"), subject.integer(f"{ROLLOUT}.n")
    mini, ranks = subject.integer(f"{ACTOR}.ppo_mini_batch_size"), data_parallel(subject)
    where = subject.where("data.train_batch_size")
    if min(size, count, mini) < 1:
        return fail(
            f"train_batch_size {size}, n {count}, ppo_mini_batch_size {mini}",
            "make all of them positive",
            where,
        )
    if ranks == 0:
        return unknown("the number of data-parallel ranks is not known (see cluster.devices)")
    if size < mini:
        return fail(f"train_batch_size {size} is below ppo_mini_batch_size {mini}", "lower the latter", where)
    # FSDP is held to all devices, Megatron to its data-parallel ranks: that is how validate_config has it.
    megatron = subject.select(f"{ACTOR}.strategy") == "megatron"
    multiple = (
        ranks * (subject.optional_integer(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or 1)
        if megatron
        else subject.world
    )
    if not subject.select(f"{ACTOR}.use_dynamic_bsz") and size * count % multiple:
        return fail(
            f"train_batch_size {size} x n {count} is not a multiple of {multiple}", "correct it", where
        )
    if mini * count % ranks:
        return fail(
            f"ppo_mini_batch_size {mini} x n {count} does not divide by {ranks} data-parallel ranks",
            "correct it",
            subject.where(f"{ACTOR}.ppo_mini_batch_size"),
        )
    if size % mini:
        return warn(
            f"train_batch_size {size} is no multiple of ppo_mini_batch_size {mini}; verl pads each step with copies",
            "make it a multiple",
            where,
        )
    return ok(f"{size} prompts x {count} responses a step, {size // mini} mini-batch(es), {ranks} rank(s)")


def check_micro_batch(subject: Subject) -> Finding:
    """Micro-batches are given, once each, and divide what a rank gets."""
    ranks = data_parallel(subject)
    if ranks == 0:
        return unknown("the number of data-parallel ranks is not known (see cluster.devices)")
    count = subject.integer(f"{ROLLOUT}.n")
    share = subject.integer(f"{ACTOR}.ppo_mini_batch_size") * count // ranks
    # The whole batch is padded to a multiple of the mini-batch, so its share on a rank is a multiple of this one.
    users = [(ACTOR, "ppo_micro_batch_size", f"{ACTOR}.use_dynamic_bsz")]
    users.append((ROLLOUT, "log_prob_micro_batch_size", f"{ROLLOUT}.log_prob_use_dynamic_bsz"))
    if subject.select("algorithm.use_kl_in_reward") or subject.select(f"{ACTOR}.use_kl_loss"):
        users.append((REF, "log_prob_micro_batch_size", f"{REF}.log_prob_use_dynamic_bsz"))
    seen = []
    for section, name, dynamic in users:
        if subject.select(dynamic):
            continue
        found = _micro_problem(subject, f"{section}.{name}", share)
        if isinstance(found, Finding):
            return found
        seen.append(f"{section.rpartition('.')[2]} {found}")
    return ok(
        f"{share} sequences a rank and mini-batch; micro-batches: {', '.join(seen) or 'by token count'}"
    )


def _micro_problem(subject: Subject, path: str, share: int) -> Finding | int:
    """The micro-batch size of one role on one device, or what is wrong with it."""
    per_device = f"{path}_per_gpu"
    whole, size = subject.optional_integer(path), subject.optional_integer(per_device)
    if whole is not None:
        return fail(
            f"{path} is {whole}; verl has deprecated it"
            + (f" and refuses it beside {per_device}" if size else ""),
            f"set {per_device} only",
            subject.where(path),
        )
    if size is None:
        return fail(f"{per_device} is not set", f"set {per_device} in config.yaml", subject.where(per_device))
    if size < 1 or share % size:
        return fail(
            f"{per_device} is {size}, which does not divide the {share} sequences of a rank",
            f"use a divisor of {share}",
            subject.where(per_device),
        )
    return size


def check_rollout_parallel(subject: Subject) -> Finding:
    """Rollout replicas fill the devices, and the model's heads divide over each."""
    tensor = subject.integer(f"{ROLLOUT}.tensor_model_parallel_size")
    data = subject.integer(f"{ROLLOUT}.data_parallel_size")
    pipeline = subject.integer(f"{ROLLOUT}.pipeline_model_parallel_size")
    where = subject.where(f"{ROLLOUT}.tensor_model_parallel_size")
    if pipeline > 1 and subject.select(f"{ROLLOUT}.name") in {"sglang", "vllm", "trtllm"}:
        return fail(
            f"pipeline_model_parallel_size is {pipeline}; verl's rollout engines take 1 only",
            "set it to 1",
            subject.where(f"{ROLLOUT}.pipeline_model_parallel_size"),
        )
    replica, pool = tensor * data * pipeline, rollout_pool(subject)
    if replica < 1 or pool.world % replica:
        return fail(
            f"a rollout replica takes {replica} devices, which do not divide the job's {pool.world}",
            "correct tensor_model_parallel_size or data_parallel_size of the rollout",
            where,
        )
    if replica > pool.devices and replica % pool.devices:
        return fail(
            f"a rollout replica takes {replica} devices over nodes of {pool.devices}",
            "use whole nodes",
            where,
        )
    return ok(f"{pool.world // replica} replica(s) of {replica} device(s)")


def check_heads(subject: Subject) -> Finding:
    """Attention heads divide over the tensor-parallel ranks of the rollout and, with Megatron, of the actor."""
    config = subject.model_config()
    if config is None:
        return subject.not_made_yet(subject.model_path) or unknown(
            "no readable config.json (see model.folder)"
        )
    text = config.get("text_config", config)
    heads, kv_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    if not isinstance(heads, int):
        return unknown("config.json names no num_attention_heads")
    paths = [f"{ROLLOUT}.tensor_model_parallel_size"]
    if subject.select(f"{ACTOR}.strategy") == "megatron":
        paths.append(f"{ACTOR}.megatron.tensor_model_parallel_size")
    for path in paths:
        ranks = subject.integer(path)
        if ranks < 1 or heads % ranks:
            return fail(
                f"{heads} heads do not divide over {ranks} ranks", f"correct {path}", subject.where(path)
            )
        if isinstance(kv_heads, int) and kv_heads % ranks and ranks % kv_heads:
            return fail(
                f"{kv_heads} key/value heads do not divide over {ranks} ranks",
                f"correct {path}",
                subject.where(path),
            )
    return ok(f"{heads} heads, {kv_heads} key/value heads")


def check_lengths(subject: Subject) -> Finding:
    """Prompt and response fit the rollout's context, the model's positions and, with it, the token budget."""
    prompt, response = (
        subject.integer(f"{ROLLOUT}.prompt_length"),
        subject.integer(f"{ROLLOUT}.response_length"),
    )
    total, where = prompt + response, subject.where("data.max_response_length")
    limit = subject.optional_integer(f"{ROLLOUT}.max_model_len")
    config = subject.model_config()
    positions = None if config is None else config.get("text_config", config).get("max_position_embeddings")
    if limit is not None and isinstance(positions, int) and limit > positions:
        return fail(
            f"rollout.max_model_len {limit} is above the model's {positions} positions",
            "lower it",
            subject.where(f"{ROLLOUT}.max_model_len"),
        )
    context = limit if limit is not None else positions
    if subject.select(f"{ACTOR}.use_dynamic_bsz"):
        budget, ranks = subject.integer(f"{ACTOR}.ppo_max_token_len_per_gpu"), sequence_ranks(subject)
        if budget * ranks < total:
            return fail(
                f"ppo_max_token_len_per_gpu {budget}{f' x {ranks}' if ranks > 1 else ''} is below prompt {prompt} + response {response}",
                f"set it to at least {-(-total // ranks)}",
                subject.where(f"{ACTOR}.ppo_max_token_len_per_gpu"),
            )
    if not isinstance(context, int):
        pending = subject.not_made_yet(subject.model_path)
        return pending or unknown("neither rollout.max_model_len nor max_position_embeddings is known")
    if total > context:
        return fail(
            f"prompt {prompt} + response {response} is above the context of {context}", "shorten one", where
        )
    if total == context:
        return warn(
            f"prompt {prompt} + response {response} fills the context of {context}; verl keeps one place free, "
            "so the longest responses lose a token",
            "shorten one by 1, or raise rollout.max_model_len",
            where,
        )
    return ok(f"prompt {prompt} + response {response}, context {context}")


def check_schedule(subject: Subject) -> Finding:
    """There are enough rows for one step, and at least one step to take."""
    files = subject.files("train")
    rows = count_rows(files)
    if rows is None:
        return subject.not_made_yet(files[0]) or unknown(
            "the training rows cannot be counted (see data.train.files)"
        )
    limit = subject.optional_integer("data.train_max_samples")
    used = min(rows, limit) if limit is not None and limit > 0 else rows
    size = subject.integer("data.train_batch_size")
    if size < 1 or used < size:
        return fail(
            f"train_batch_size is {size}, but there are {used} training rows",
            "lower data.train_batch_size or add rows",
            subject.where("data.train_batch_size"),
        )
    fixed = subject.optional_integer("trainer.total_training_steps")
    steps = used // size * subject.integer("trainer.total_epochs") if fixed is None else fixed
    if steps < 1:
        path = "trainer.total_epochs" if fixed is None else "trainer.total_training_steps"
        return fail(f"{steps} training steps", f"raise {path}", subject.where(path))
    # Beyond the last epoch verl ends, whatever total_training_steps says.
    available = used // size * subject.integer("trainer.total_epochs")
    if steps > available:
        return warn(
            f"{steps} steps asked for, the rows and epochs give {available}",
            "raise trainer.total_epochs",
            subject.where("trainer.total_training_steps"),
        )
    saves = subject.integer("trainer.save_freq")
    return ok(
        f"{steps} steps over {used:,} rows; "
        + (f"saves every {saves}" if saves > 0 else "saves no checkpoint")
    )


def check_resume(subject: Subject) -> Finding:
    """The resume mode exists, and a path to resume from is a checkpoint."""
    mode = subject.select("trainer.resume_mode")
    where = subject.where("trainer.resume_mode")
    if mode not in {"auto", "disable", "resume_path"}:
        return fail(f"trainer.resume_mode is {mode!r}", "use auto, disable or resume_path", where)
    if mode != "resume_path":
        return ok(str(mode))
    path = subject.select("trainer.resume_from_path")
    if not isinstance(path, str) or "global_step_" not in path:
        return fail(
            f"trainer.resume_from_path is {path!r}",
            "name a checkpoint folder called global_step_<N>",
            subject.where("trainer.resume_from_path"),
        )
    return ok(f"from {path}")


CHECKS = (
    Check("config.required", "values that verl leaves open", check_required),
    Check("cluster.devices", "devices of the job against cluster and parallelism", check_devices),
    Check("cluster.cpus", "logical CPUs against what verl's placement asks for", check_cpus),
    Check("batch.size", "train_batch_size, n and ppo_mini_batch_size over the ranks", check_batch),
    Check("batch.micro", "micro-batch sizes", check_micro_batch),
    Check("rollout.parallel", "rollout replicas over the devices", check_rollout_parallel),
    Check("model.heads", "attention heads over tensor-parallel ranks", check_heads),
    Check("length.context", "prompt and response lengths against the context", check_lengths),
    Check("trainer.schedule", "rows, steps and checkpoints", check_schedule),
    Check("trainer.resume", "resume options", check_resume),
)
