"""verl's Megatron engine trains in float32, but its configuration refuses to name it."""

import functools
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "verl.workers.config.engine"
TARGET = f"{MODULE}:McoreEngineConfig.__post_init__"

PATCH = Patch(
    id="verl-mcore-float32",
    summary="megatron.dtype: float32 is accepted, so that trainer and rollout can be compared to float32's precision",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        "verl.workers.config.engine:McoreEngineConfig.__post_init__": {
            "0.9.1": "5c0b7bad2251e20cd11bfbc8b67dbad90272d080c642efa72b3f34690f5abe6b",
        },
    },
    reason="The engine and the optimizer configuration have a float32 branch, and the check admits bfloat16 and float16 "
    "only. In bfloat16 the probabilities of trainer and rollout differ by a thousandth, which hides a wrong layout.",
    source="verl 0.9.1, workers/config/engine.py and utils/megatron/optimizer.py",
    remove_when=RemoveWhen(text="McoreEngineConfig accepts float32"),
    without="dtype float32 not supported",
)

FLOAT32 = "float32"
ACCEPTED = "bfloat16"


@PATCH.wrap(TARGET)
def _accept_float32(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def __post_init__(self: Any) -> None:  # noqa: N807  (the target's name)
        if self.dtype != FLOAT32:
            original(self)
            return
        # The fields of verl's configurations are frozen, so around their own setter; all other checks still apply.
        object.__setattr__(self, "dtype", ACCEPTED)
        try:
            original(self)
        finally:
            object.__setattr__(self, "dtype", FLOAT32)

    return __post_init__
