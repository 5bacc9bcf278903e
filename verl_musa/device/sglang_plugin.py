"""SGLang general plugin (group ``sglang.srt.plugins``): sampling that depends on each request's own seed only.

SGLang honours ``sampling_seed`` only with ``enable_deterministic_inference``, which wants attention backends and kernels
that a CPU does not have. With VERL_MUSA_SEEDED_SAMPLING=1 the seeds are honoured without it: a token depends on
the model's probabilities, the request's seed and the position, and not on what else is in the batch. A float32 model
on the CPU gets probabilities that do not depend on the batch either: see wide_linear.
SGLang only logs a plugin that fails, so each scheduler leaves a mark when its sampler first uses a seed, and
the server actor fails the run if the mark is missing.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from verl_musa.device import capability, wide
from verl_musa.device.expect import proof_dir, write_atomically
from verl_musa.device.replica import CPU_ENGINE_ENV

logger = logging.getLogger(__name__)

SEEDING_ENV = "VERL_MUSA_SEEDED_SAMPLING"
# Set by the server actor for the processes it starts; a scheduler may be its grandchild.
SERVER_PID_ENV = "VERL_MUSA_SGLANG_SERVER_PID"
# Seed of a request that brings none although seeding is on (SGLang's own choice for that case).
DEFAULT_SEED = 42
_MASK = (1 << 64) - 1
_marked = False


def seeding_asked() -> bool:
    """Whether this process is asked for seeded sampling."""
    return os.environ.get(SEEDING_ENV) == "1"


def register() -> None:
    """Hook SGLang's sampler, if seeded sampling is asked for, and its weight checker for the gate; restore the capability.

    Called by SGLang in each of its processes.
    """
    capability.restore()
    if os.environ.get("VERL_MUSA_GATE"):
        from verl_musa.device import gate_servers

        gate_servers.register_sglang()
    if os.environ.get(CPU_ENGINE_ENV) == "1":
        from verl_musa.device import sglang_release

        sglang_release.register()
    if not seeding_asked():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
        with_seeds,
        HookType.AROUND,
    )
    HookRegistry.register("sglang.srt.layers.sampler.multinomial_with_seed", draw, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply", wide_linear, HookType.AROUND
    )
    HookRegistry.register(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head", wide_lm_head, HookType.AROUND
    )
    # Where the classifiers take it from when their module is imported, which is after the plugins are loaded.
    HookRegistry.register("sglang.srt.layers.pooler.score_and_pool", wide_score, HookType.AROUND)


def wide_linear(original: Any, method: Any, layer: Any, x: Any, bias: Any = None) -> Any:
    """Compute a float32 CPU layer in float64 (why: see wide); other dtypes and devices are left to SGLang.

    Args:
        original: SGLang's method.
        method: the UnquantizedLinearMethod.
        layer: module with ``weight`` (out, in).
        x: (..., in).
        bias: (out,) or None.

    Returns:
        (..., out), dtype of ``x``.
    """
    return (
        wide.wide_linear(x, layer.weight, bias) if _is_plain(x, layer) else original(method, layer, x, bias)
    )


def wide_lm_head(
    original: Any, processor: Any, hidden_states: Any, lm_head: Any, embedding_bias: Any = None
) -> Any:
    """Do as wide_linear for the output projection; SGLang computes it elsewhere."""
    if _is_plain(hidden_states, lm_head):
        return wide.wide_linear(hidden_states, lm_head.weight)
    return original(processor, hidden_states, lm_head, embedding_bias)


def wide_score(original: Any, score_head: Any, *args: Any, **kwargs: Any) -> Any:
    """Do as wide_linear for the head of a reward model, a plain linear layer.

    Args:
        original: SGLang's function.
        score_head: module that gives each pooled state (rows, hidden) its scores (rows, labels).
        args: pooler and batch.
        kwargs: the same by name.
    """
    import torch

    def head(x: Any) -> Any:
        return (
            wide.wide_linear(x, score_head.weight, score_head.bias)
            if _is_plain(x, score_head)
            else score_head(x)
        )

    return original(head if isinstance(score_head, torch.nn.Linear) else score_head, *args, **kwargs)


def _is_plain(x: Any, layer: Any) -> bool:
    import torch

    weight: Any = getattr(layer, "weight", None)
    plain = weight is not None and not hasattr(layer, "set_lora")
    return plain and x.device.type == "cpu" and x.dtype == torch.float32 == weight.dtype


def with_seeds(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Give the batch's sampling information the seeds of its requests (int64, one per request)."""
    import torch

    info = original(*args, **kwargs)
    batch = kwargs["batch"] if "batch" in kwargs else args[-2]
    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    values = [DEFAULT_SEED if seed is None else int(seed) for seed in seeds]
    info.sampling_seed = torch.tensor(values, dtype=torch.int64, device=info.temperatures.device)
    return info


def draw(original: Any, logprobs: Any, seed: Any, positions: Any) -> Any:
    """Draw one token per row by inverting its cumulative distribution at a number made from (seed, position).

    Args:
        original: SGLang's version, not used: it is compiled at run time and hashes with unsigned kernels.
        logprobs: (rows, vocabulary), need not be normalised; minus infinity excludes a token.
        seed: (rows,), int64.
        positions: (rows,), position of the token in its sequence.

    Returns:
        (rows, 1) int64 token indices.
    """
    import torch

    del original
    _leave_mark()
    numbers = [
        uniform(row_seed, row_position)
        for row_seed, row_position in zip(seed.tolist(), positions.tolist(), strict=True)
    ]
    weights = logprobs.to(torch.float64).exp()
    cumulative = weights.cumsum(dim=1)
    targets = (
        torch.tensor(numbers, dtype=torch.float64, device=logprobs.device).unsqueeze(1) * cumulative[:, -1:]
    )
    # right=True skips tokens of weight zero; the clamp only matters if rounding puts the target at the very end.
    found = torch.searchsorted(cumulative, targets, right=True)
    return found.clamp_(max=logprobs.shape[1] - 1)


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) made from two integers (SplitMix64's finaliser over both)."""
    state = _mix((seed & _MASK) ^ _mix((position + 0x9E3779B97F4A7C15) & _MASK))
    return (state >> 11) / float(1 << 53)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _leave_mark() -> None:
    global _marked  # noqa: PLW0603 - once per process
    folder = proof_dir()
    if _marked or folder is None:
        return
    server = os.environ.get(SERVER_PID_ENV, "unknown")
    write_atomically(folder / f"seeded-{server}-{os.getpid()}.txt", "the sampler uses the requests' seeds\n")
    _marked = True


def announce_server() -> None:
    """Call in the server actor before it starts SGLang: names it to its schedulers, drops marks of an equal pid."""
    os.environ[SERVER_PID_ENV] = str(os.getpid())
    folder = proof_dir()
    for path in folder.glob(f"seeded-{os.getpid()}-*.txt") if folder is not None else ():
        path.unlink(missing_ok=True)


def require_marks() -> None:
    """Check, in the server actor, that one of its schedulers used seeds.

    Raises:
        RuntimeError: no mark although the run has a directory: SGLang did not load or apply this plugin.
    """
    folder = proof_dir()
    if folder is None:
        logger.warning("no run directory: whether SGLang uses sampling seeds cannot be checked")
        return
    if not any(folder.glob(f"seeded-{os.getpid()}-*.txt")):
        raise RuntimeError(
            f"requests carry sampling seeds, but no scheduler of the SGLang server {os.getpid()} used one: the plugin "
            f"verl_musa.device.sglang_plugin (group sglang.srt.plugins) is not in force. Is {SEEDING_ENV}=1 set in "
            "the runtime_env, and does SGLANG_PLUGINS leave it out?"
        )
