"""A worker to which Ray assigned device 1, all devices being visible to it, must compute on device 1."""

import os
from types import SimpleNamespace

from support import load, register_platform

for name in [name for name in os.environ if name.startswith("RAY_EXPERIMENTAL_NOSET_")]:
    del os.environ[name]
NOSET = "RAY_EXPERIMENTAL_NOSET_{}_VISIBLE_DEVICES"
STUBS = ("ray", "transfer_queue", "verl.protocol", "verl.utils.transferqueue_utils")
register_platform()
worker = load("verl.single_controller.base.worker", distribution="verl", stubs=STUBS)

import torch  # noqa: E402

worker.ray.get_runtime_context = lambda: SimpleNamespace(get_accelerator_ids=lambda: {"GPU": ["1"]})


def device(vendor: str) -> int:
    """Return the device on which a worker computes that Ray left alone by this vendor's variable."""
    torch.musa.set_device(0)
    os.environ[NOSET.format(vendor)] = "1"
    try:
        worker.Worker._setup_env_cuda_visible_devices(SimpleNamespace())
    finally:
        del os.environ[NOSET.format(vendor)]
    return int(torch.musa.current_device())


if (found := device("MUSA")) != 1:
    raise SystemExit(f"the worker of device 1 computes on device {found}")
if device("CUDA") != 1 or device("NOBODY") != 0:
    raise SystemExit("the other vendors' variables no longer count as before")
