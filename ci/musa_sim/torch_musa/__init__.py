"""A simulated Moore Threads device: ``torch_musa`` on host memory, for machines without one.

It is a real PyTorch PrivateUse1 backend renamed ``musa``: tensors live on their own device, are allocated against a
memory limit, have their own random state, and cannot be mixed with CPU tensors. Kernels are PyTorch's CPU kernels.
What it can and cannot show is written in docs/simulator.md of the project.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torch_musa._refuse import refuse_beside_real

refuse_beside_real()

import torch  # noqa: E402
from torch.utils import rename_privateuse1_backend  # noqa: E402

__simulator__ = True
__version__ = f"{torch.__version__.split('+')[0]}+simulator"

MAX_DEVICES = 64


def _check_environment() -> None:
    for name, low, high in (("MUSA_SIM_DEVICES", 0, MAX_DEVICES), ("MUSA_SIM_MEMORY_MIB", 1, 1 << 30)):
        text = os.environ.get(name, "")
        if text and not (text.isdigit() and low <= int(text) <= high):
            raise ImportError(
                f"environment variable {name}: found {text!r}, expected a number from {low} to {high}"
            )


_check_environment()
rename_privateuse1_backend("musa")

from torch_musa._load import load_extension  # noqa: E402

_C = load_extension()
_C.bind_composites()

from torch_musa import _install  # noqa: E402
from torch_musa.core import _lazy_init as _lazy  # noqa: E402
from torch_musa.core import device as _device  # noqa: E402
from torch_musa.core import graphs, memory, random, tensor_types  # noqa: E402, F401
from torch_musa.core import stream as streams  # noqa: E402, F401
from torch_musa.core._lazy_init import *  # noqa: E402, F403
from torch_musa.core.device import *  # noqa: E402, F403
from torch_musa.core.graphs import *  # noqa: E402, F403
from torch_musa.core.memory import *  # noqa: E402, F403
from torch_musa.core.random import *  # noqa: E402, F403
from torch_musa.core.stream import *  # noqa: E402, F403
from torch_musa.core.tensor_types import *  # noqa: E402, F403

_is_in_bad_fork = _lazy._is_in_bad_fork
_lazy_call = _lazy._lazy_call
_lazy_init = _lazy._lazy_init
_is_compiled = _device._is_compiled
_exchange_device = _device._exchange_device
_maybe_exchange_device = _device._maybe_exchange_device
OutOfMemoryError = torch.OutOfMemoryError

_install.install(sys.modules[__name__])

from torch_musa import amp  # noqa: E402, F401


def __getattr__(name: str) -> Any:
    # Both follow the runtime: checkpointing asks `_initialized` whether there is device RNG to save.
    if name == "_initialized":
        return _C.is_initialized()
    if name == "default_generators":
        return tuple(_C.default_generator(index) for index in range(_C.device_count()))
    raise AttributeError(f"module 'torch_musa' has no attribute {name!r}")
