"""Megatron's distributed optimizer cannot describe itself before its first step, which resuming asks of it."""

import functools
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "megatron.core.optimizer.distrib_optimizer"
TARGET = f"{MODULE}:DistributedOptimizer.state_dict"
FILLER = f"{MODULE}:DistributedOptimizer._init_optimizer_states_with_dummy_values"

PATCH = Patch(
    id="megatron-optimizer-empty-state",
    summary="a run resumes in a fresh process with torch's optimizer (no Transformer Engine, no Apex)",
    distribution="megatron-core",
    versions=">=0.16,<0.19",
    fingerprints={
        "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.state_dict": {
            "0.16.1": "dd5687cbfb9a1392f216ead3741ed864d6edfcedd5a42aee6d3c13ac60f53bb9",
            "0.18.0": "dd5687cbfb9a1392f216ead3741ed864d6edfcedd5a42aee6d3c13ac60f53bb9",
        },
        "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer._init_optimizer_states_with_dummy_values": {
            "0.16.1": "174ed34b79d6c174c401768745b7ee239a2ce9497de621accdd09020b0956622",
            "0.18.0": "174ed34b79d6c174c401768745b7ee239a2ce9497de621accdd09020b0956622",
        },
    },
    reason="state_dict reads the step from the optimizer's state and asserts that there is exactly one, but before the "
    "first step there is none, and that is when a checkpoint is loaded.",
    source="Megatron-Core 0.16.1, core/optimizer/distrib_optimizer.py; seen as `assert len(steps) == 1`",
    remove_when=RemoveWhen(text="state_dict copes with an empty state without Transformer Engine and Apex"),
    without="assert len(steps) == 1",
)


@PATCH.wrap(TARGET)
def _fill_empty_state(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def state_dict(self: Any) -> Any:
        # The globals of the original, because whether Apex is there is that module's own finding.
        if not original.__globals__["HAVE_APEX_OR_TE"] and not self.optimizer.state:
            _fill(self)
        return original(self)

    return state_dict


def _fill(optimizer: Any) -> None:
    """Give every parameter an optimizer state at step 0 without changing the parameter.

    Megatron's own filler takes a step with zero gradients, in which weight decay would still act: so the
    learning rate is 0 meanwhile.
    """
    groups = optimizer.optimizer.param_groups
    rates = [group["lr"] for group in groups]
    try:
        for group in groups:
            group["lr"] = 0.0
        optimizer._init_optimizer_states_with_dummy_values()
    finally:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
    for state in optimizer.optimizer.state.values():
        state["step"].zero_()
