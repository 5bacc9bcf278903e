"""verl asks whether Ray was told to leave the visible devices alone, and does not know MUSA's variable."""

import os
from collections.abc import Callable, Mapping

from verl_musa.patching import Patch, RemoveWhen

TARGET = "verl.utils.ray_utils:ray_noset_visible_devices"
NOSET = "RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES"

PATCH = Patch(
    id="verl-ray-noset-musa",
    summary="RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES counts like the other vendors' variables",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        TARGET: {
            "0.9.1": "8bbb69e2d9600eeea91f635ea7058d90f56634e634cd17f8db6ad894bce00f9e",
        },
    },
    reason="With every device visible to every worker, verl's Worker then takes device 0 on each rank instead of the "
    "one that Ray assigned: all ranks of a host pile up on one card.",
    source="verl 0.9.1, utils/ray_utils.py and single_controller/base/worker.py (_setup_env_cuda_visible_devices)",
    remove_when=RemoveWhen(text="verl's list names the MUSA variable, or asks the platform for it"),
    without="the worker of device 1 computes on device 0",
)


@PATCH.wrap(TARGET)
def _with_musa(original: Callable[..., bool]) -> Callable[..., bool]:
    def ray_noset_visible_devices(env_vars: Mapping[str, str] = os.environ) -> bool:
        return bool(env_vars.get(NOSET)) or original(env_vars)

    return ray_noset_visible_devices
