"""An MTT S5000 must have a finite peak rate, and other cards the ones they had."""

from support import load

module = load(
    "verl.utils.flops_counter", distribution="verl", stubs=("torch", "transformers", "verl.utils.device")
)
peak = module.get_device_flops("T", device_name="MTT S5000")
if peak != 458:
    raise SystemExit(f"peak of an MTT S5000 is {peak}")
if module.get_device_flops("T", device_name="NVIDIA H100") != 989:
    raise SystemExit("the H100's peak changed")
if module.get_device_flops("T", device_name="unheard of") != float("inf"):
    raise SystemExit("an unknown card got a peak")
