"""Start-up hook of the stub (loaded by ``sgl_kernel_stub.pth`` in every interpreter; must stay cheap).

It installs one import finder that costs nothing until one of three packages is imported:

* ``sgl_kernel.<sub>``: any submodule of the stub except the un-importable ones;
* ``torchvision``: the wheel on PyPI is built for another device and its native library does not load beside a CPU
  torch; its Python part then fails on ops that were never declared. They are declared first;
* ``triton``: absent here (one gigabyte, and no use on a CPU). Where the wheel is not installed and
  SGLANG_USE_CPU_ENGINE=1, an inert package answers, whose kernels raise when launched.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any, NoReturn

CPU_ENGINE_ENV = "SGLANG_USE_CPU_ENGINE"
UNIMPORTABLE = ("sgl_kernel.scalar_type",)
TORCHVISION_OPS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept_libraries: list[Any] = []


class Inert:
    """An object that survives import-time use (decorator, attribute chain, annotation) and refuses real work."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Act as a decorator (returns an unlaunchable kernel) or as a configuration constructor."""
        if len(args) == 1 and not kwargs and callable(args[0]):
            return UnlaunchableKernel(getattr(args[0], "__name__", self.__name__))
        return Inert(f"{self.__name__}()")

    def __getitem__(self, key: Any) -> Inert:
        return Inert(f"{self.__name__}[...]")

    def __contains__(self, item: Any) -> bool:
        """Say that nothing is in it. Without this, Python would ask ``__getitem__`` for 0, 1, 2, … for ever."""
        return False

    def __iter__(self) -> Iterator[Any]:
        """Have no items, for the same reason."""
        return iter(())

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__


class UnlaunchableKernel(Inert):
    """A triton kernel as far as an import can tell; launching it raises."""

    def __getitem__(self, grid: Any) -> Any:
        """Return the launcher for a grid, which refuses."""
        return self._refuse

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"triton kernel {self.__name__} was launched, but triton is not installed on this host: "
            "choose a torch backend (attention_backend=torch_native, sampling_backend=pytorch)."
        )


class InertValue:
    """Base of the classes that the stand-in triton offers: any arguments, no behaviour."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs


class _StubLoader(Loader):
    """Creates empty packages whose attributes come from a factory."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__path__ = []
        if name.startswith("sgl_kernel."):
            import sgl_kernel

            module.__dict__["__getattr__"] = lambda attr: _kernel_attribute(sgl_kernel, name, attr)
        else:
            module.__dict__["__version__"] = "0.0.0+stub"
            module.__dict__["__stub__"] = True
            module.__dict__["__getattr__"] = lambda attr: _triton_attribute(name, attr)


def _kernel_attribute(root: ModuleType, module: str, attribute: str) -> Any:
    if attribute.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
    return root.MissingKernel(f"{module.removeprefix('sgl_kernel.')}.{attribute}")


def _triton_attribute(module: str, attribute: str) -> Any:
    if attribute.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
    if attribute[:1].isupper() or attribute in {"constexpr", "dtype"}:
        # Classes are used as bases, in isinstance checks and in annotations: they must be real types.
        return type(attribute, (InertValue,), {"__module__": module})
    return Inert(f"{module}.{attribute}")


class StubFinder(MetaPathFinder):
    """Answers for submodules of the stub and for an absent triton; declares torchvision's ops on the way."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for the names this hook stands in for, None for everything else."""
        del target
        root = fullname.partition(".")[0]
        if fullname == "torchvision":
            return self._torchvision_spec(fullname, path)
        if root == "sgl_kernel" and fullname != root and fullname not in UNIMPORTABLE:
            loaded = sys.modules.get("sgl_kernel")
            if getattr(loaded, "__stub__", False):
                return spec_from_loader(fullname, _StubLoader(), is_package=True)
        if root == "triton" and os.environ.get(CPU_ENGINE_ENV) == "1" and not _is_installed("triton"):
            return spec_from_loader(fullname, _StubLoader(), is_package=True)
        return None

    def _torchvision_spec(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def declare_then_run(module: ModuleType) -> None:
            declare_torchvision_ops()
            run(module)

        spec.loader.exec_module = declare_then_run  # type: ignore[method-assign]
        return spec


def declare_torchvision_ops() -> None:
    """Declare the torchvision ops whose absence breaks ``import torchvision`` beside a CPU torch.

    Only declarations: calling one still raises. Ops that exist already are left alone, and so is a torch
    built for a device, beside which torchvision's native library loads and declares them itself.
    """
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in TORCHVISION_OPS:
        name = f"torchvision::{schema.partition('(')[0]}"
        if not _is_declared(name):
            library.define(schema)
    _kept_libraries.append(library)


def _is_declared(name: str) -> bool:
    import torch

    return bool(torch._C._jit_get_schemas_for_operator(name))


def _is_installed(package: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(package, None) is not None


def install() -> None:
    """Put the finder in front of the path finder, once per process."""
    if not any(isinstance(finder, StubFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StubFinder())
