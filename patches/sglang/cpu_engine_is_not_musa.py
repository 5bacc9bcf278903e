"""SGLang takes torchada's presence for a MUSA host, also where its server computes on the CPU beside a simulated device."""

import functools
import os
from collections.abc import Callable

from verl_musa.patching import Patch, RemoveWhen

MODULE = "sglang.srt.utils.common"
TARGET = f"{MODULE}:is_musa"
CPU_ENGINE_ENV = "SGLANG_USE_CPU_ENGINE"

PATCH = Patch(
    id="sglang-cpu-engine-is-not-musa",
    summary="with SGLANG_USE_CPU_ENGINE=1 SGLang takes its CPU path and does not import torchada",
    distribution="sglang",
    versions=">=0.5.12,<0.6",
    fingerprints={
        "sglang.srt.utils.common:is_musa": {
            "0.5.19": "99dac99e11ed71bd6f02f74ee585972ca01df1fd787e3413f19774c603e52f88",
            "0.5.12": "99dac99e11ed71bd6f02f74ee585972ca01df1fd787e3413f19774c603e52f88",
            "0.5.23": "508ce037aaac1252088e291b2e27af208f5254ffc74c78d1d52f187086047cd1",
        },
    },
    reason="Megatron needs torchada, and whoever imports SGLang asks is_musa(): it imports torchada, which redirects torch "
    "for the whole process, and then chooses MUSA kernels, which a server on the CPU does not have. Only simulated "
    "devices have such a server; on a real device the question is right.",
    source="SGLang 0.5.19, srt/utils/common.py",
    remove_when=RemoveWhen(text="is_musa() is False where SGLANG_USE_CPU_ENGINE=1"),
    without="SGLang takes this host for a MUSA host",
    devices=("simulated",),
)


@PATCH.wrap(TARGET)
def _unless_on_the_cpu(original: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(original)
    def is_musa() -> bool:
        return os.environ.get(CPU_ENGINE_ENV) != "1" and original()

    return is_musa
