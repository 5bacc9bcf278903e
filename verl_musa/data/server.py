"""Options of the SGLang rollout server that fail together, or undo each other without a word.

verl 0.9.1 merges ``engine_kwargs.sglang`` over its own server arguments last, so an option there silently wins over verl's switch
for the same thing (``enforce_eager``, the memory saver). The MUSA rows are reports of public deployments and of SGLang's MUSA
backend; docs/recipes.md lists them with their sources.
"""

from __future__ import annotations

from typing import Any

from verl_musa.checks import Check, Finding, fail, ok, warn
from verl_musa.data.subject import Subject

ROLLOUT = "actor_rollout_ref.rollout"
SERVER = f"{ROLLOUT}.engine_kwargs.sglang"
VERL_ATTENTION = "flashinfer"
"""What verl 0.9.1 asks of SGLang 0.5.12 and later where no attention backend is named."""

ATTENTION = {"musa": ("fa3", "triton", "torch_native"), "cpu": ("torch_native", "intel_amx")}
"""Device of the server -> attention backends that SGLang has there."""

FA3_PAGE = 64
"""Page size that SGLang chooses on MUSA, the only one that its fa3 backend is known to run with there."""


def option(subject: Subject, name: str, default: Any = None) -> Any:
    """An argument of the server as the recipe gives it; ``default`` where it does not."""
    return subject.select(f"{SERVER}.{name}", default)


def _uses_sglang(subject: Subject) -> bool:
    return subject.select(f"{ROLLOUT}.name") == "sglang"


def _device(subject: Subject) -> str:
    return str(option(subject, "device", subject.resolved.recipe.device.type))


def _graphs(subject: Subject) -> bool:
    """Whether the server captures graphs: its own switch wins over verl's."""
    return not option(subject, "disable_cuda_graph", bool(subject.select(f"{ROLLOUT}.enforce_eager")))


def _not_sglang(subject: Subject) -> Finding:
    return ok(f"the rollout is {subject.select(f'{ROLLOUT}.name')}, not SGLang")


def check_attention(subject: Subject) -> Finding:
    """The attention backend exists on the server's device."""
    if not _uses_sglang(subject):
        return _not_sglang(subject)
    device, named = _device(subject), option(subject, "attention_backend")
    backend = named or VERL_ATTENTION
    fitting = ATTENTION.get(device)
    if fitting is not None and backend not in fitting:
        found = f"{backend} on {device}" if named else f"none named, so verl asks for {backend} on {device}"
        return fail(
            found,
            f"set sglang: {{attention_backend: {fitting[0]}}} in recipe.yaml ({' or '.join(fitting)})",
            subject.where(f"{SERVER}.attention_backend"),
        )
    return ok(f"{backend} on {device}")


def check_page_size(subject: Subject) -> Finding:
    """The page size suits the attention backend."""
    if not _uses_sglang(subject):
        return _not_sglang(subject)
    page, backend = option(subject, "page_size"), option(subject, "attention_backend")
    if _device(subject) == "musa" and backend == "fa3" and page not in {None, FA3_PAGE}:
        return warn(
            f"page size {page} with fa3",
            f"use {FA3_PAGE}, SGLang's default on MUSA, or leave it out",
            subject.where(f"{SERVER}.page_size"),
        )
    return ok("SGLang's default" if page is None else f"{page} tokens")


def check_graphs(subject: Subject) -> Finding:
    """Graph capture is switched in one direction only, and can be done at all."""
    if not _uses_sglang(subject):
        return _not_sglang(subject)
    eager, disabled = subject.select(f"{ROLLOUT}.enforce_eager"), option(subject, "disable_cuda_graph")
    where = subject.where(f"{SERVER}.disable_cuda_graph")
    if disabled is not None and bool(eager) is not bool(disabled):
        return fail(
            f"enforce_eager is {eager} ({subject.where(f'{ROLLOUT}.enforce_eager')}), but "
            f"engine_kwargs.sglang.disable_cuda_graph is {disabled} and wins",
            "remove both and set sglang: {graphs: true|false} in recipe.yaml",
            where,
        )
    if _graphs(subject) and _device(subject) == "cpu":
        return warn(
            "graphs are on, and the server computes on the CPU",
            "set sglang: {graphs: false} in recipe.yaml",
            subject.where(f"{ROLLOUT}.enforce_eager"),
        )
    return ok("captured" if _graphs(subject) else "off")


def check_memory_saver(subject: Subject) -> Finding:
    """The memory saver works beside graph capture, and is used if and only if it is on."""
    if not _uses_sglang(subject):
        return _not_sglang(subject)
    saver = bool(option(subject, "enable_memory_saver", default=True))
    frees = bool(subject.select(f"{ROLLOUT}.free_cache_engine"))
    where = subject.where(f"{SERVER}.enable_memory_saver")
    fix = "set sglang: {memory_saver: true|false} in recipe.yaml, which sets both"
    if saver and _graphs(subject) and _device(subject) == "musa":
        return fail(
            "the memory saver and graph capture are both on: on MUSA capturing ends with error 900",
            "set sglang: {graphs: false} or {memory_saver: false} in recipe.yaml",
            where,
        )
    if frees and not saver:
        return warn(
            "free_cache_engine is on and the memory saver is off: no memory is given back", fix, where
        )
    if saver and not frees:
        return warn("the memory saver is on and free_cache_engine is off: it only costs", fix, where)
    return ok("weights and cache are given back between phases" if saver else "off; memory is kept")


def check_schedule(subject: Subject) -> Finding:
    """Overlap scheduling is off where speculative decoding would wait for it for ever."""
    if not _uses_sglang(subject):
        return _not_sglang(subject)
    speculative = option(subject, "speculative_algorithm")
    overlap = not option(subject, "disable_overlap_schedule", default=False)
    if speculative and overlap and _device(subject) == "musa":
        return fail(
            f"{speculative} with the overlap schedule: reported to deadlock on MUSA (300 s watchdog)",
            "set sglang: {overlap_schedule: false} in recipe.yaml",
            subject.where(f"{SERVER}.speculative_algorithm"),
        )
    return ok("overlap schedule on" if overlap else "overlap schedule off")


def check_determinism(subject: Subject) -> Finding:
    """Seeded sampling is not undone by a prefix cache, what is found in which depends on timing."""
    if not _uses_sglang(subject):
        return _not_sglang(subject)
    variables = subject.resolved.runtime_env.get("env_vars", {})
    cache = not option(subject, "disable_radix_cache", default=False)
    if variables.get("VERL_MUSA_SEEDED_SAMPLING") == "1" and cache:
        return warn(
            "sampling is seeded, and the radix cache is on: last bits of probabilities depend on timing",
            "set sglang: {radix_cache: false} in recipe.yaml, or drop VERL_MUSA_SEEDED_SAMPLING",
            subject.where(f"{SERVER}.disable_radix_cache"),
        )
    return ok("radix cache on" if cache else "radix cache off")


def check_tensor_parallel(subject: Subject) -> Finding:
    """Tensor parallelism of the server meets none of the reported MUSA faults."""
    if not _uses_sglang(subject):
        return _not_sglang(subject)
    ranks = subject.integer(f"{ROLLOUT}.tensor_model_parallel_size")
    where = subject.where(f"{ROLLOUT}.tensor_model_parallel_size")
    variables = subject.resolved.runtime_env.get("env_vars", {})
    if ranks > 1 and variables.get("MUSA_LAUNCH_BLOCKING") == "1":
        return warn(
            f"MUSA_LAUNCH_BLOCKING=1 with {ranks} tensor-parallel ranks: reported to desynchronise SGLang's scheduler",
            "remove MUSA_LAUNCH_BLOCKING from runtime_env.yaml",
            str(subject.resolved.recipe.folder / "runtime_env.yaml"),
        )
    node = subject.integer("trainer.n_gpus_per_node")
    dtype = str(subject.select(f"{ROLLOUT}.dtype"))
    if ranks > node and dtype in {"bfloat16", "auto"} and _device(subject) == "musa":
        return warn(
            f"{ranks} tensor-parallel ranks over nodes of {node} devices in {dtype}: such an all-reduce was reported to need float32",
            f"keep tensor_model_parallel_size at {node} or below",
            where,
        )
    return ok(f"{ranks} rank(s) in {dtype}")


CHECKS = (
    Check("server.attention", "attention backend of the SGLang server", check_attention),
    Check("server.page_size", "page size of the key-value cache", check_page_size),
    Check("server.graphs", "graph capture, in verl's switch and SGLang's", check_graphs),
    Check("server.memory_saver", "memory saver against graphs and free_cache_engine", check_memory_saver),
    Check("server.schedule", "overlap schedule against speculative decoding", check_schedule),
    Check("server.determinism", "seeded sampling against the radix cache", check_determinism),
    Check("server.tensor_parallel", "tensor parallelism of the server", check_tensor_parallel),
)
