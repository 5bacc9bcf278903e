"""torchada compiles kernels at every import, for which a simulated device has neither headers nor use."""

from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "torchada._cpp_ops"
TARGET = f"{MODULE}:load_cpp_ops"

PATCH = Patch(
    id="torchada-no-kernels-simulated",
    summary="on a simulated device torchada is imported without an attempt to compile its kernels",
    distribution="torchada",
    versions=">=0.1.103,<0.2",
    fingerprints={
        "torchada._cpp_ops:load_cpp_ops": {
            "0.1.103": "ed62b327c8ee72b602fe5d794284856d37b7a903ee76d8fec46fbb8ca897de56",
        },
    },
    reason="torchada builds operators for the device when it is imported. On the simulator that fails, with a warning, after "
    "seconds of compiling in each process of a job, and under one lock, so that they wait for one another.",
    source="torchada 0.1.103, _cpp_ops.py",
    remove_when=RemoveWhen(text="torchada can be told not to build"),
    without="Failed to load torchada C++ ops",
    devices=("simulated",),
)


@PATCH.replace(TARGET)
def load_cpp_ops(force_reload: bool = False) -> Any:
    """Return None: no operators of torchada's own."""
    del force_reload
