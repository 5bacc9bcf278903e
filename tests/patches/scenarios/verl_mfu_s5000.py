"""The device, simulated or not, must have a finite peak rate, and other cards the ones they had."""

import sys

import torch
import torch_musa  # noqa: F401
from support import Stub, load

device = Stub("verl.utils.device")
device.get_torch_device = lambda: torch.musa
sys.modules["verl.utils.device"] = device
module = load("verl.utils.flops_counter", distribution="verl", stubs=("transformers", "verl.utils.device"))
peak = module.get_device_flops("T")
if peak != 458:
    raise SystemExit(f"peak of an MTT S5000 is {peak}")
if module.get_device_flops("T", device_name="NVIDIA H100") != 989:
    raise SystemExit("the H100's peak changed")
if module.get_device_flops("T", device_name="unheard of") != float("inf"):
    raise SystemExit("an unknown card got a peak")
