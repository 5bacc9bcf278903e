"""What scenarios share. Each runs in a fresh process, with the import hooks on.

`start_megatron` starts one rank of Megatron-Core on the simulated device. `load` imports one real upstream module without
what surrounds it (packages hollow, other imports stubs), where what surrounds it takes too long or is not installed
in that version; the module's own source runs unchanged.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SKIP = 77
"""Exit code of a scenario that cannot be played here; its last line on stderr says why."""


class AnyMeta(type):
    """A class any attribute of which is another such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = AnyMeta(name, (Anything,), {})
        setattr(cls, name, made)
        return made


class Anything(metaclass=AnyMeta):
    """Takes any arguments; used as a decorator it returns what it decorates."""

    def __new__(cls, *args: Any, **_options: Any) -> Any:
        if len(args) == 1 and callable(args[0]):
            return args[0]
        return super().__new__(cls)

    def __init__(self, *_args: Any, **_options: Any) -> None:
        """Take anything."""

    def __call__(self, function: Any) -> Any:
        return function


class Stub(ModuleType):
    """A package in which every name and every submodule exists."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = AnyMeta(name, (Anything,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Stubs:
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module


def load(name: str, *, distribution: str, stubs: Sequence[str]) -> ModuleType:
    """Import the real module ``name``; ``stubs`` and all below them are stubs, parents of ``name`` are empty."""
    sys.meta_path.append(_Stubs(stubs))
    for stub in stubs:
        # In front of what is really installed.
        sys.modules.setdefault(stub, Stub(stub))
    root = Path(str(metadata.distribution(distribution).locate_file("")))
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        module = ModuleType(package)
        module.__path__ = [str(root.joinpath(*parts[:depth]))]
        sys.modules[package] = module
    return importlib.import_module(name)


def import_torchada() -> None:
    """Import torchada, as whatever redirects CUDA must be: before the code that it redirects."""
    with warnings.catch_warnings():
        # On import it compiles kernels, for which the simulator has no headers, and goes on without them; a compiler
        # that is not there fails at once.
        warnings.filterwarnings("ignore", message="Failed to load torchada C")
        os.environ["CXX"] = "/bin/false"
        importlib.import_module("torchada")


def start_megatron(seed: int = 1) -> None:
    """Import torchada, then start one rank of Megatron-Core on musa:0 over mccl, as a worker does."""
    import_torchada()
    import torch

    torch.musa.set_device(0)
    torch.distributed.init_process_group(
        "mccl", store=torch.distributed.HashStore(), rank=0, world_size=1, device_id=torch.device("musa:0")
    )
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def linear_with_optimizer(
    *, sharded: bool, dtype: Any = None, **options: Any
) -> tuple[Any, Any, Callable[[], float]]:
    """Make a linear layer of ones (2, 4) on the device under Megatron's data parallelism, and its Adam.

    Args:
        sharded: the distributed optimizer, else the plain one.
        dtype: the layer's; bfloat16 where None.
        options: for OptimizerConfig.

    Returns:
        the layer, the optimizer, and a function that takes one step with all gradients 3 and returns their norm.
    """
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype = dtype or torch.bfloat16
    narrow = dtype is torch.bfloat16
    layer = torch.nn.Linear(4, 2, bias=False).to("musa", dtype)
    torch.nn.init.ones_(layer.weight)
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1, bf16=narrow)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=sharded, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, ddp, layer)
    defaults = {"lr": 0.125, "weight_decay": 0.0, "clip_grad": 1.0}
    adam = OptimizerConfig(
        bf16=narrow, params_dtype=dtype, use_distributed_optimizer=sharded, **{**defaults, **options}
    )
    optimizer = get_megatron_optimizer(adam, [model])

    def train() -> float:
        model.zero_grad_buffer()
        model(torch.ones(3, 4, device="musa", dtype=dtype)).float().sum().backward()
        model.finish_grad_sync()
        _, norm, _ = optimizer.step()
        return float(norm)

    return layer, optimizer, train


def register_platform() -> None:
    """Make musa verl's platform, as verl does when it is imported whole."""
    os.environ["VERL_PLATFORM"] = "musa"
    load("verl.plugin.platform", distribution="verl", stubs=())
    importlib.import_module("verl_musa.device.plugin")


def start_again(
    file: str, role: str, *, env: Mapping[str, str] | None = None, piped: bool = False
) -> subprocess.Popen[bytes]:
    """Start the scenario ``file`` once more, in a process of its own, with ``role`` as its last argument."""
    code = (
        f"import runpy, sys, verl_musa._start; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
        f"runpy.run_path({file!r}, run_name='__main__')"
    )
    pipe = subprocess.PIPE if piped else None
    return subprocess.Popen(
        [sys.executable, "-c", code, role],
        env={**os.environ, **(env or {})},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )


def load_sglang_reductions() -> ModuleType:
    """Load SGLang's patch_torch and let it change how torch hands tensors over, as a trainer and a server do.

    Where a MUSA tensor's form differs between the simulator and torch_musa it is made alike: real ones go through torch's
    own rebuild_cuda_tensor, whose place SGLang takes.
    """
    import torch
    from torch.multiprocessing import reductions
    from torch_musa.core import ipc

    common = Stub("sglang.srt.utils.common")
    vars(common).update(is_musa=lambda: True, is_npu=lambda: False, torch_release=(2, 13))
    sys.modules[common.__name__] = common
    module = load("sglang.srt.utils.patch_torch", distribution="sglang", stubs=(common.__name__,))
    torch.cuda = torch.musa  # torchada's redirect
    reductions.rebuild_cuda_tensor = ipc.rebuild_musa_tensor
    module.monkey_patch_torch_reductions()
    ipc.rebuild_musa_tensor = reductions.rebuild_cuda_tensor
    return module
