"""Makes the package PyTorch's device module for ``musa`` and adds what PyTorch keeps per backend."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

MUSA_VERSION = "0.0.0-simulator"


def install(package: ModuleType) -> None:
    """Registers ``torch.musa``, tensor/module/storage methods, sharing between processes, compile fallback."""
    from torch_musa.core import compile_fallback, ipc

    torch._register_device_module("musa", package)
    for name in ("streams", "memory", "random", "graphs"):
        sys.modules[f"torch.musa.{name}"] = getattr(package, name)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    version: Any = torch.version
    version.musa = MUSA_VERSION
    ipc.install()
    compile_fallback.install()
    _install_extras()


def _install_extras() -> None:
    from torch_musa import denylist, faults

    if torch.distributed.is_available():
        from torch_musa import mccl

        mccl.register()
    denylist.load_environment()
    faults.load_environment()
