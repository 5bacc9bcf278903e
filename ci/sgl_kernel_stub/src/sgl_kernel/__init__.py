"""Stand-in for SGLang's kernel package: every name imports and raises when called.

SGLang's CPU path imports kernel names at start-up but, for the models this project tests, calls none of them:
its layers have torch forwards. Two rules keep it on that path:

* ``sgl_kernel.scalar_type`` must not be importable: SGLang has its own fallback behind that ImportError;
* ``torch.ops.sgl_kernel.convert_weight_packed`` must not exist: its absence is how SGLang knows that
  the CPU kernels are missing. This package therefore defines no torch op at all.
"""

from __future__ import annotations

from importlib import metadata
from typing import NoReturn

__stub__ = True
__version__ = "0.0.0+stub"

REAL_DISTRIBUTIONS = ("sgl-kernel", "sglang-kernel")
UNIMPORTABLE = frozenset({"scalar_type"})


class MissingKernel:
    """A kernel name that can be imported, passed around and compared, but not called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse.

        Raises:
            NotImplementedError: always; the message names the kernel.
        """
        raise NotImplementedError(
            f"sgl_kernel.{self.__name__} was called, but this is the stub for hosts without an accelerator: "
            "it has no kernels. Use a backend with a torch forward, or install the real package."
        )

    def __repr__(self) -> str:
        return f"<missing kernel {self.__name__}>"


def _refuse_beside_real_kernels() -> None:
    for name in REAL_DISTRIBUTIONS:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        raise ImportError(
            f"sgl-kernel-stub is installed beside the real {name} {version}: a real host must never run "
            "on the stub. Next step: pip uninstall sgl-kernel-stub, then reinstall the real package."
        )


def __getattr__(name: str) -> MissingKernel:
    if name.startswith("__") or name in UNIMPORTABLE:
        raise AttributeError(f"module 'sgl_kernel' has no attribute {name!r}")
    return MissingKernel(name)


_refuse_beside_real_kernels()
