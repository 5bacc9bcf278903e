"""Keeps the simulator away from a machine that has the real thing."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

REAL_DISTRIBUTION = "torch_musa"
MARKER = "__simulator__ = True"


def find_real_torch_musa() -> str | None:
    """Describes an installed real torch_musa, or ``None``. Looks at distributions and at ``sys.path`` only."""
    try:
        real = importlib.metadata.distribution(REAL_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        real = None
    if real is not None:
        return f"distribution {REAL_DISTRIBUTION} {real.version} in {real.locate_file('')}"
    own = Path(__file__).resolve().parent
    for entry in sys.path:
        package = Path(entry or ".").resolve() / "torch_musa"
        init = package / "__init__.py"
        if (
            package != own
            and init.is_file()
            and MARKER not in init.read_text(encoding="utf-8", errors="replace")
        ):
            return f"package {package}"
    return None


def refuse_beside_real() -> None:
    """Raises ImportError if a real torch_musa is installed in this environment."""
    found = find_real_torch_musa()
    if found is not None:
        raise ImportError(
            f"refusing to load the simulated musa device: a real torch_musa is installed ({found}). Simulated results "
            "must not be taken for real ones: run 'pip uninstall musa-sim', or use another environment for the "
            "simulator"
        )
