"""Time of one step, as far as it can be told from public figures: what is computed, at the rates that others reported.

Nothing here was measured by this project. The rates are inputs, and a result is a range.
"""

from __future__ import annotations

from dataclasses import dataclass

from verl_musa.plan.model import ModelShape


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Rates that decide the result, each as (low, high).

    Attributes:
        peak_flops: dense bfloat16 operations a second of one device.
        utilisation: share of them that training reaches.
        tokens_per_node: tokens a second and node that public runs reported for whole steps, sampling included.
        response_share: mean length of a response as a share of the longest one.
    """

    peak_flops: float = 458e12
    utilisation: tuple[float, float] = (0.25, 0.35)
    tokens_per_node: tuple[float, float] = (600.0, 900.0)
    response_share: tuple[float, float] = (0.25, 0.5)


@dataclass(frozen=True)
class StepTime:
    """Seconds as (low, high): of the trainer's passes, and of a whole step."""

    training: tuple[float, float]
    step: tuple[float, float]


def step_time(
    shape: ModelShape,
    *,
    sequences: int,
    prompt: int,
    response: int,
    world: int,
    nodes: int,
    reference: bool,
    recompute: bool,
    assumed: Assumptions | None = None,
) -> StepTime:
    """Estimate a step of ``sequences`` samples.

    The trainer makes a forward pass for old log-probabilities, one for a reference, and an update of a forward and a backward of
    twice its cost, with the forward again where layers are recomputed.
    """
    assumed = assumed or Assumptions()
    passes = 1 + (1 if reference else 0) + 3 + (1 if recompute else 0)
    training, whole = [], []
    for share, rate, speed in zip(
        assumed.response_share,
        reversed(assumed.utilisation),
        reversed(assumed.tokens_per_node),
        strict=True,
    ):
        length = prompt + int(share * response)
        tokens = sequences * length
        training.append(passes * shape.forward_flops(tokens, length) / (world * assumed.peak_flops * rate))
        whole.append(tokens / (speed * nodes))
    return StepTime((training[0], training[1]), (whole[0], whole[1]))
