"""verl's table of peak rates has no Moore Threads card, and an unknown card counts as infinitely fast."""

from typing import Any

from verl_musa.patching import Patch, RemoveWhen

TARGET = "verl.utils.flops_counter:_DEVICE_FLOPS"
LOOKED_UP_BY = "verl.utils.flops_counter:get_device_flops"

# Dense bf16 peak of one MTT S5000 in FLOP/s, as a public runtime environment of a veRL run on that card sets it.
PEAK_FLOPS = {"S5000": 458e12}

PATCH = Patch(
    id="verl-mfu-s5000",
    summary="the MTT S5000 has a peak rate, so perf/mfu is a number and not 0",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        TARGET: {
            "0.9.1": "0f17a55195ec8d3d93bc48bb2326791c59d8f230fc8a23a06b8a309294c82777",
        },
        LOOKED_UP_BY: {
            "0.9.1": "f6d2d3b01d86ca8e8c8d76686cfffaba2e7af547d09740a714dc0d29cc998e1e",
        },
    },
    reason="get_device_flops returns infinity for a card that is not in its table, and MFU is then reported as 0.",
    source="verl 0.9.1, utils/flops_counter.py",
    remove_when=RemoveWhen(text="verl's table has the S5000 (look for the key in the table)"),
    without="peak of an MTT S5000 is inf",
)


@PATCH.attribute(TARGET)
def _with_s5000(table: dict[str, float]) -> dict[str, Any]:
    return {**PEAK_FLOPS, **table}
