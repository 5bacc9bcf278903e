"""Options that cancel, override or need each other in verl 0.9.1, where nothing says so until much later, or ever."""

from __future__ import annotations

from verl_musa.checks import Check, Finding, fail, ok, warn
from verl_musa.data.arithmetic import ACTOR, REF, ROLLOUT
from verl_musa.data.sizes import CRITIC, needs_reference
from verl_musa.data.subject import Subject
from verl_musa.rules.layout import is_megatron, roles, written

MODEL = "actor_rollout_ref.model"


def is_set(subject: Subject, path: str) -> bool:
    """Whether a file or option of the user sets ``path``, rather than verl."""
    return not subject.where(path).startswith("verl's default")


def check_dist_checkpoint(subject: Subject) -> Finding:
    """A Megatron checkpoint is named where it is loaded, and loaded where it is named."""
    for role in roles(subject):
        if not is_megatron(subject, role):
            continue
        use, path = f"{role}.megatron.use_dist_checkpointing", f"{role}.megatron.dist_checkpointing_path"
        if subject.select(use) and not subject.select(path):
            return fail(
                f"{use} is true, and {path} is not set",
                f"set {path} to the converted weights",
                subject.where(use),
            )
        if subject.select(path) and not subject.select(use):
            return fail(
                f"{path} is set, but {use} is false: the weights come from model.path",
                f"set {use}: true, or remove the path",
                subject.where(path),
            )
    return ok("named where it is loaded")


def check_bridge(subject: Subject) -> Finding:
    """The bridge that verl 0.9.1's Megatron engine asserts, and one that can be had on MUSA."""
    for role in roles(subject):
        if not is_megatron(subject, role):
            continue
        use, legacy = f"{role}.megatron.use_mbridge", f"{role}.megatron.vanilla_mbridge"
        if not subject.select(use):
            return fail(f"{use} is false: verl 0.9.1's engine asserts a bridge, also where it loads a Megatron checkpoint",
                        "remove the line", written(subject, use))  # fmt: skip
        if not subject.select(legacy):
            return warn(f"{legacy} is false: verl then asks for Megatron-Bridge, which needs Python 3.12 and Transformer Engine",
                        f"set {legacy}: true", written(subject, legacy, f"{role}.strategy"))  # fmt: skip
    return ok("mbridge" if is_megatron(subject) else "no bridge: the trainer is not Megatron")


def check_padding(subject: Subject) -> Finding:
    """Packed sequences are asked for in the place that verl looks at, and the attention can take them."""
    model = f"{MODEL}.use_remove_padding"
    packed = bool(subject.select(model))
    for role in roles(subject):
        path = f"{role}.megatron.use_remove_padding"
        if (
            role != CRITIC
            and is_megatron(subject, role)
            and is_set(subject, path)
            and bool(subject.select(path)) != packed
        ):
            return fail(
                f"{path} is {subject.select(path)}, but {model} is {packed} and wins",
                f"remove {path} and set {model}",
                subject.where(path),
            )
    backend = f"{ACTOR}.megatron.override_transformer_config.attention_backend"
    if is_megatron(subject) and packed and str(subject.select(backend)) == "local":
        return fail("Megatron's own attention (attention_backend: local) takes no packed sequences, and use_remove_padding is true",
                    f"set {model}: false, or another attention_backend", written(subject, backend, model))  # fmt: skip
    ulysses = f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"
    if not is_megatron(subject) and not packed and (subject.optional_integer(ulysses) or 1) > 1:
        return fail(
            f"{ulysses} is {subject.select(ulysses)} without use_remove_padding, which verl refuses",
            f"set {model}: true",
            subject.where(ulysses),
        )
    return ok("packed sequences" if packed else "padded sequences")


def check_offload(subject: Subject) -> Finding:
    """One way of putting states aside, not two at once."""
    for role in roles(subject):
        block = (
            f"{role}.megatron"
            if is_megatron(subject, role)
            else f"{role}.{'fsdp' if role == CRITIC else 'fsdp_config'}"
        )
        policy = f"{block}.offload_policy"
        if subject.select(policy) and (
            subject.select(f"{block}.param_offload") or subject.select(f"{block}.optimizer_offload")
        ):
            return fail(f"{policy} is true: FSDP2 then keeps states on the host itself, and param_offload and optimizer_offload are not looked at",
                        "keep one of the two", subject.where(policy))  # fmt: skip
        options = f"{role}.optim.override_optimizer_config"
        host = f"{options}.optimizer_cpu_offload"
        fraction = subject.select(f"{options}.optimizer_offload_fraction")
        if fraction is not None and not subject.select(host):
            return fail(f"{options}.optimizer_offload_fraction is {fraction}, and optimizer_cpu_offload is off: nothing lives on the host",
                        f"set '+{host}: true', or remove the fraction", subject.where(f"{options}.optimizer_offload_fraction"))  # fmt: skip
        if subject.select(host) and subject.select(f"{block}.optimizer_offload"):
            return warn(f"{host} keeps the optimizer on the host already; optimizer_offload then moves what is left to and fro each step",
                        f"remove {block}.optimizer_offload", subject.where(f"{block}.optimizer_offload"))  # fmt: skip
    return ok("one way for each role")


def check_clip(subject: Subject) -> Finding:
    """The clip range that is set is the one that is used."""
    whole, sides = f"{ACTOR}.clip_ratio", [f"{ACTOR}.clip_ratio_{side}" for side in ("low", "high")]
    if is_set(subject, whole) and subject.select(f"{ACTOR}.policy_loss.loss_mode") == "vanilla":
        hidden = [path for path in sides if not is_set(subject, path) and subject.select(path) is not None]
        if hidden and subject.select(hidden[0]) != subject.select(whole):
            return fail(f"{whole} is {subject.select(whole)}, but verl's default {hidden[0].rpartition('.')[2]} of {subject.select(hidden[0])} wins",
                        "set clip_ratio_low and clip_ratio_high instead", subject.where(whole))  # fmt: skip
    low, high = (float(subject.select(path, 0.2)) for path in sides)
    if not 0 < low < 1 or high <= 0:
        return fail(
            f"clip range from -{low:g} to +{high:g}",
            "use values such as 0.2 and 0.28",
            written(subject, *sides),
        )
    return ok(f"-{low:g} to +{high:g}")


def check_kl(subject: Subject) -> Finding:
    """A KL term is used where it is weighted, once."""
    loss, reward, weight = f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward", f"{ACTOR}.kl_loss_coef"
    if subject.select(loss) and subject.select(reward):
        return warn(
            "the KL is both in the loss and in the reward",
            f"keep one: remove {reward} or {loss}",
            written(subject, reward, loss),
        )
    if is_set(subject, weight) and not subject.select(loss):
        return warn(
            f"{weight} is set, but {loss} is false: it has no effect",
            f"set {loss}: true, or remove it",
            subject.where(weight),
        )
    if needs_reference(subject):
        return ok("in the loss" if subject.select(loss) else "in the reward")
    idle = next(
        (o for o in subject.resolved.overrides if o.path.startswith(f"{REF}.") and not o.forced), None
    )
    if idle is not None:
        return warn(
            f"{idle.path} is set, but there is no reference model: no KL term is used",
            "remove the line, or use a KL term",
            idle.origin,
        )
    return ok("none")


def check_sampling(subject: Subject) -> Finding:
    """Training samples come from the policy whose probabilities are computed."""
    cut = {f"{ROLLOUT}.top_k": (-1, 0), f"{ROLLOUT}.top_p": (1, 1.0)}
    for path, whole in cut.items():
        value = subject.select(path)
        if value is not None and value not in whole:
            return warn(f"{path} is {value}: samples come from a cut distribution, and the trainer computes probabilities of the whole one",
                        "remove the line for training; val_kwargs may have it", subject.where(path))  # fmt: skip
    temperature = f"{ROLLOUT}.temperature"
    if not float(subject.select(temperature, 1.0)) > 0:
        return fail(
            f"{temperature} is {subject.select(temperature)}: every sample of a prompt is the same",
            "set it to 1.0",
            subject.where(temperature),
        )
    val = f"{ROLLOUT}.val_kwargs"
    if subject.select(f"{val}.do_sample") and not float(subject.select(f"{val}.temperature", 0)) > 0:
        return fail(
            f"{val}.do_sample is true with temperature {subject.select(f'{val}.temperature')}",
            f"set {val}.temperature, 0.6 as a start",
            written(subject, f"{val}.do_sample"),
        )
    if not subject.select(f"{val}.do_sample") and int(subject.select(f"{val}.n", 1)) > 1:
        return warn(
            f"{val}.n is {subject.select(f'{val}.n')} without do_sample: all answers are the same",
            f"set {val}.do_sample: true",
            subject.where(f"{val}.n"),
        )
    return ok(f"temperature {subject.select(temperature, 1.0):g}, the whole distribution")


def check_warmup(subject: Subject) -> Finding:
    """The learning rate's warm-up is said once, and ends before the run does."""
    steps = subject.optional_integer("trainer.total_training_steps")
    for role in (ACTOR, CRITIC):
        count, share = f"{role}.optim.lr_warmup_steps", f"{role}.optim.lr_warmup_steps_ratio"
        fixed = subject.optional_integer(count)
        if fixed is not None and fixed > 0 and is_set(subject, count):
            if is_set(subject, share) and subject.select(share):
                return fail(
                    f"{share} is {subject.select(share)}, but {count} {fixed} wins",
                    "remove one of the two",
                    subject.where(share),
                )
            if steps is not None and fixed >= steps and is_set(subject, "trainer.total_training_steps"):
                return warn(
                    f"{count} is {fixed}, the run has {steps} steps: the learning rate is never reached",
                    f"lower {count}",
                    subject.where(count),
                )
    return ok("said once")


def check_correction(subject: Subject) -> Finding:
    """What corrects for the rollout's probabilities has them."""
    path, source = "algorithm.rollout_correction.rollout_is", f"{ROLLOUT}.calculate_log_probs"
    if subject.select(path) and not subject.select(source):
        return fail(
            f"{path} is {subject.select(path)!r}, and {source} is false: there is nothing to correct with",
            f"set {source}: true",
            written(subject, source, path),
        )
    replay = f"{ACTOR}.megatron.router_replay.mode"
    mode, sends = subject.select(replay), bool(subject.select(f"{ROLLOUT}.enable_rollout_routing_replay"))
    if mode == "R3" and not sends:
        return fail(
            f"{replay} is R3, and the rollout sends no routes",
            f"set {ROLLOUT}.enable_rollout_routing_replay: true",
            subject.where(replay),
        )
    if sends and mode != "R3":
        return warn(
            "the rollout sends routes, and the trainer does not replay them",
            f"set {replay}: R3, or remove it",
            subject.where(f"{ROLLOUT}.enable_rollout_routing_replay"),
        )
    return ok(f"{subject.select(path) or 'no'} importance correction")


def check_critic(subject: Subject) -> Finding:
    """A critic is there if and only if the estimator uses one."""
    estimator, enabled = subject.select("algorithm.adv_estimator"), subject.select(f"{CRITIC}.enable")
    if estimator == "gae" and enabled is False:
        return fail(
            "adv_estimator gae needs a critic, and critic.enable is false",
            f"remove {CRITIC}.enable",
            subject.where(f"{CRITIC}.enable"),
        )
    if estimator != "gae" and enabled:
        return warn(
            f"critic.enable is true, and {estimator} does not use a critic",
            f"remove {CRITIC}.enable",
            subject.where(f"{CRITIC}.enable"),
        )
    if estimator != "gae":
        idle = next(
            (o for o in subject.resolved.overrides if o.path.startswith(f"{CRITIC}.") and not o.forced), None
        )
        if idle is not None:
            return warn(
                f"{idle.path} is set, and {estimator} uses no critic",
                "remove the line, or set algorithm.adv_estimator: gae",
                idle.origin,
            )
    return ok(f"{estimator}, {'a' if estimator == 'gae' else 'no'} critic")


def check_engine_options(subject: Subject) -> Finding:
    """Options of one engine are not given to another."""
    blocks = {"sglang": f"{ROLLOUT}.engine_kwargs.sglang", "vllm": f"{ROLLOUT}.engine_kwargs.vllm"}
    name = str(subject.select(f"{ROLLOUT}.name"))
    for engine, path in blocks.items():
        other = (
            next((o for o in subject.resolved.overrides if o.path.startswith(path)), None)
            if engine != name
            else None
        )
        if other is not None:
            return warn(
                f"{other.path} is set, and the rollout is {name}: it has no effect",
                "remove the line",
                other.origin,
            )
    if is_megatron(subject):
        other = next(
            (o for o in subject.resolved.overrides if ".fsdp_config." in o.path and "optim" not in o.path),
            None,
        )
        if other is not None:
            return warn(
                f"{other.path} is set, and the trainer is Megatron: it has no effect",
                "remove the line",
                other.origin,
            )
        gradient = f"{MODEL}.enable_gradient_checkpointing"
        if is_set(subject, gradient) and subject.select(gradient):
            return warn(
                f"{gradient} is FSDP's; Megatron looks at override_transformer_config.recompute_*",
                "remove the line",
                subject.where(gradient),
            )
    return ok(f"{subject.select(f'{ACTOR}.strategy')} and {name}")


def check_saving(subject: Subject) -> Finding:
    """What a run saves can be resumed from."""
    contents, frequency = f"{ACTOR}.checkpoint.save_contents", subject.integer("trainer.save_freq")
    kinds = set(subject.select(contents, []) or [])
    if frequency > 0 and "model" not in kinds:
        return fail(
            f"{contents} is {sorted(kinds)}: no weights are saved", "add 'model'", subject.where(contents)
        )
    if frequency > 0 and not {"optimizer", "extra"} <= kinds:
        return warn(f"{contents} is {sorted(kinds)}: a resumed run starts with an empty optimizer or another order of data",
                    "use model, optimizer and extra", subject.where(contents))  # fmt: skip
    return ok(f"{', '.join(sorted(kinds))} every {frequency} steps" if frequency > 0 else "nothing is saved")


CHECKS = (
    Check("conflict.checkpoint", "Megatron checkpoints that are loaded", check_dist_checkpoint),
    Check("conflict.bridge", "the bridge between Hugging Face and Megatron", check_bridge),
    Check("conflict.padding", "packed sequences, asked for once and possible", check_padding),
    Check("conflict.offload", "ways of putting states aside", check_offload),
    Check("conflict.clip", "clip range", check_clip),
    Check("conflict.kl", "KL terms and the reference model", check_kl),
    Check("conflict.sampling", "sampling of training and validation", check_sampling),
    Check("conflict.warmup", "warm-up of the learning rate", check_warmup),
    Check("conflict.correction", "what corrects for the rollout's probabilities", check_correction),
    Check("conflict.critic", "critic against the advantage estimator", check_critic),
    Check("conflict.engine", "options of engines that are not used", check_engine_options),
    Check("conflict.saving", "what checkpoints hold", check_saving),
)
