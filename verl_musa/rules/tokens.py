"""Batches by token count, samples a prompt, and the key-value cache."""

from __future__ import annotations

from verl_musa.checks import Check, Finding, fail, ok, unknown, warn
from verl_musa.data.arithmetic import ACTOR, REF, ROLLOUT
from verl_musa.data.sizes import (
    CRITIC,
    needs_critic,
    needs_reference,
    server_layout,
    shape_of,
    trainer_layout,
)
from verl_musa.data.subject import Subject
from verl_musa.plan import GIB, server_memory
from verl_musa.rules.layout import NO_FACTS, written

GROUPED = ("grpo", "grpo_passk", "rloo", "opo", "grpo_vectorized", "rloo_vectorized", "gpg")
"""Estimators of verl whose baseline is the other samples of the same prompt."""


def longest(subject: Subject) -> int:
    """Tokens of the longest sample."""
    return subject.integer(f"{ROLLOUT}.prompt_length") + subject.integer(f"{ROLLOUT}.response_length")


def _budgets(subject: Subject) -> list[tuple[str, str]]:
    """(role, key) of each token budget that is in use."""
    found = []
    if subject.select(f"{ACTOR}.use_dynamic_bsz"):
        found.append((ACTOR, f"{ACTOR}.ppo_max_token_len_per_gpu"))
    if subject.select(f"{ROLLOUT}.log_prob_use_dynamic_bsz"):
        found.append((ACTOR, f"{ROLLOUT}.log_prob_max_token_len_per_gpu"))
    if needs_reference(subject) and subject.select(f"{REF}.log_prob_use_dynamic_bsz"):
        found.append((REF, f"{REF}.log_prob_max_token_len_per_gpu"))
    return found


def check_budgets(subject: Subject) -> Finding:
    """Every token budget holds the longest sample: verl asserts it in the middle of a step."""
    need, found = longest(subject), _budgets(subject)
    for role, path in found:
        ranks = trainer_layout(subject, role).cp
        budget = subject.integer(path)
        if budget * ranks < need:
            return fail(f"{path} is {budget}" + (f" x {ranks} context-parallel ranks" if ranks > 1 else "") + f", the longest sample has {need} tokens",
                        f"set it to at least {-(-need // ranks)}, or shorten data.max_response_length", written(subject, path, f"{ACTOR}.ppo_max_token_len_per_gpu"))  # fmt: skip
    return ok(
        f"longest sample {need} tokens; "
        + (
            ", ".join(f"{path.rpartition('.')[2]} {subject.integer(path)}" for _, path in found)
            or "fixed batches"
        )
    )


def check_critic_budget(subject: Subject) -> Finding:
    """The budget of the critic is given where verl 0.9.1 reads it."""
    if not needs_critic(subject):
        return ok("no critic")
    need, path = longest(subject), f"{CRITIC}.ppo_infer_max_token_len_per_gpu"
    budget = subject.optional_integer(path)
    shown, budget = ("verl's built-in 32768", 32768) if budget is None else (f"{budget}", budget)
    ranks = trainer_layout(subject, CRITIC).cp
    if budget * ranks < need:
        return fail(f"{path} is {shown}, the longest sample has {need} tokens; verl 0.9.1 reads this key for training too, and not ppo_max_token_len_per_gpu",
                    f"add '+{path}: {-(-need // ranks)}' to config.yaml", written(subject, path, f"{CRITIC}.ppo_max_token_len_per_gpu"))  # fmt: skip
    return ok(f"longest sample {need} tokens, budget {shown}")


def check_dynamic(subject: Subject) -> Finding:
    """Batches by token count are on for training and for log-probabilities, or for neither; sizes that are then ignored are not set."""
    train, infer = f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    on = bool(subject.select(train))
    if on != bool(subject.select(infer)):
        return fail(
            f"{train} is {on}, {infer} is {not on}: verl asserts that they are equal",
            f"remove {infer}",
            written(subject, infer, train),
        )
    if not on:
        return ok("fixed micro-batches")
    sizes = [f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"]
    if needs_reference(subject):
        sizes.append(f"{REF}.log_prob_micro_batch_size_per_gpu")
    ignored = [path for path in sizes if subject.select(path) is not None]
    if ignored:
        return warn(
            f"{ignored[0]} has no effect: use_dynamic_bsz makes micro-batches by token count",
            "remove the line",
            subject.where(ignored[0]),
        )
    return ok("micro-batches by token count")


def check_samples(subject: Subject) -> Finding:
    """As many samples a prompt as the estimator needs."""
    estimator, path = subject.select("algorithm.adv_estimator"), f"{ROLLOUT}.n"
    count = subject.integer(path)
    if estimator in GROUPED and count < 2:  # noqa: PLR2004  (a group)
        return fail(f"{estimator} with {path} {count}: a sample has no others of its prompt to be compared with, and every advantage is 0",
                    f"set {path} to 2 or more, 8 as a start", written(subject, path, "algorithm.adv_estimator"))  # fmt: skip
    if estimator == "gae" and count > 1:
        return warn(
            f"gae with {path} {count}: the critic is the baseline, groups only repeat prompts",
            f"set {path}: 1 and raise data.train_batch_size",
            subject.where(path),
        )
    return ok(f"{estimator}, {count} sample(s) a prompt")


def check_fraction(subject: Subject) -> Finding:
    """The server's share of a device is a share, holds the weights, and leaves room for at least one whole sample."""
    path = f"{ROLLOUT}.gpu_memory_utilization"
    fraction, where = subject.select(path), subject.where(path)
    if not isinstance(fraction, int | float) or not 0 < fraction < 1:
        return fail(f"{path} is {fraction!r}", "set it between 0 and 1, 0.6 as a start", where)
    shape = shape_of(subject)
    if shape is None:
        return unknown(NO_FACTS)
    if subject.resolved.recipe.device.simulated:
        return ok(f"{fraction:g} of the host's memory")
    layout = server_layout(subject)
    server = server_memory(shape, layout)
    need = longest(subject)
    shown = f"{fraction:g} x {layout.device_gib:.0f} GiB: weights {server.weights / GIB:.1f}, cache {server.cache / GIB:.1f} GiB for {server.cache_tokens:,} tokens"
    if server.cache_tokens < need:
        return fail(
            f"{shown}; the longest sample has {need:,}",
            "raise it, or the rollout's tensor_model_parallel_size",
            where,
        )
    samples = (
        subject.integer("data.train_batch_size") * subject.integer(f"{ROLLOUT}.n") // max(layout.replicas, 1)
    )
    return ok(
        f"{shown}; at worst {min(server.cache_tokens // need, samples)} of a server's {samples} samples at once"
    )


def check_prefill(subject: Subject) -> Finding:
    """Where prefill is not cut into pieces, one piece holds a whole sample."""
    path = f"{ROLLOUT}.max_num_batched_tokens"
    if subject.select(f"{ROLLOUT}.name") != "vllm" or subject.select(f"{ROLLOUT}.enable_chunked_prefill"):
        return ok("prefill in pieces")
    need, limit = longest(subject), subject.integer(path)
    if limit < need:
        return fail(
            f"enable_chunked_prefill is false and {path} {limit} is below the longest sample, {need}",
            f"set it to {need}, or allow chunked prefill",
            subject.where(path),
        )
    return ok(f"whole prompts, up to {limit} tokens")


CHECKS = (
    Check("tokens.budget", "token budgets against prompt + response", check_budgets),
    Check("tokens.critic", "token budget of the critic", check_critic_budget),
    Check("tokens.dynamic", "batches by token count, for all or for none", check_dynamic),
    Check("tokens.samples", "samples a prompt against the advantage estimator", check_samples),
    Check("rollout.cache", "memory of weights and key-value cache of a server", check_fraction),
    Check("rollout.prefill", "tokens of one prefill", check_prefill),
)
