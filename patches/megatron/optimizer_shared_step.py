"""After loading, the parameters of Megatron's distributed optimizer have forgotten how many steps they took."""

import functools
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

TARGET = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.load_state_dict"

PATCH = Patch(
    id="megatron-optimizer-shared-step",
    summary="a resumed run takes the steps that an undisturbed one takes, with torch's optimizer (no Transformer Engine, no Apex)",
    distribution="megatron-core",
    versions=">=0.16,<0.19",
    fingerprints={
        TARGET: {
            "0.16.1": "fa6d34c688537597f57b9a875d86410a59983cb55adef1372ab2789c9df3e514",
            "0.18.0": "fa6d34c688537597f57b9a875d86410a59983cb55adef1372ab2789c9df3e514",
        },
    },
    reason="Without Transformer Engine and Apex, load_state_dict makes one tensor of the step and gives it to every parameter's state; torch "
    "keeps it as it is, so each parameter adds one to it in every step. Then the loaded parameter state puts into it what the template "
    "of the load held, which is 0. Adam corrects its averages for the wrong step: the losses after a resume are others, and nothing says so.",
    source="Megatron-Core 0.16.1, core/optimizer/distrib_optimizer.py; seen as a loss of 4.200 instead of 4.171, two steps after a resume",
    remove_when=RemoveWhen(text="load_state_dict gives every state a step of its own"),
    without="parameters do not count their own steps",
)


@PATCH.wrap(TARGET)
def _own_steps(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Any) -> None:
        import torch

        original(self, state_dict)
        # The globals of the original, because whether Apex is there is that module's own finding.
        if not original.__globals__["HAVE_APEX_OR_TE"]:
            (step,) = {
                group["step"] for group in state_dict["optimizer"]["param_groups"]
            }  # as the original asserts
            for state in self.optimizer.state.values():
                state["step"] = torch.tensor(step, dtype=torch.float32)

    return load_state_dict
