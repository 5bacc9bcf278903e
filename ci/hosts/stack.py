"""This Python with all that is installed beside it, in hosts of the light base: real Ray, veRL and simulated devices without an image."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ci.hosts.model import Shape

ROOT = Path(__file__).resolve().parents[2]
SIMULATOR = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl-musa" / "musa_sim"
"""Where the simulated device was compiled: the hosts have no compiler, so whoever uses it there gives this folder to ``with_stack``."""


def with_stack(shape: Shape | None = None, *further: Path) -> Shape:
    """The shape with this environment, this checkout and ``further`` folders in every host, read-only, under their own paths.

    Commands of ssh sessions find this checkout's package first, and ``site.yaml`` names this Python.
    """
    given = shape or Shape()
    folders = (Path(sys.prefix), Path(sys.base_prefix), ROOT, *_editable(), *further)
    variables = (("PYTHONPATH", str(ROOT)), ("PYTHONDONTWRITEBYTECODE", "1"))
    return replace(
        given,
        mounts=(*given.mounts, *outermost(folders)),
        environment=(*given.environment, *variables),
        python=Path(sys.executable),
    )


def _editable() -> Iterable[Path]:
    """The folders of what is installed in place."""
    for found in metadata.distributions():
        facts = json.loads(found.read_text("direct_url.json") or "{}")
        if facts.get("dir_info", {}).get("editable"):
            yield Path(unquote(urlsplit(facts["url"]).path))


def outermost(folders: Iterable[Path]) -> list[Path]:
    """Each folder that is there and below none of the others, once."""
    some = sorted({folder.resolve() for folder in folders if folder.is_dir()})
    return [one for one in some if not any(other in one.parents for other in some)]
