"""Build hook: refuses to build beside a real kernel package (seen when pip builds without isolation)."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REAL_DISTRIBUTIONS = ("sgl-kernel", "sglang-kernel")


class RefuseBesideRealKernels(BuildHookInterface[Any]):
    """Stops the build where real kernels are installed; the package refuses again when imported."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Check, build nothing.

        Raises:
            RuntimeError: a distribution of REAL_DISTRIBUTIONS is installed.
        """
        del version, build_data
        for name in REAL_DISTRIBUTIONS:
            try:
                installed = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
            raise RuntimeError(
                f"sgl-kernel-stub: found the real {name} {installed} in this environment; expected none. "
                "Use the real kernels here, or make a separate environment for hosts without an accelerator."
            )
