"""A base with torch and a simulated torch_musa in its own Python, in the place of the vendor's: for builds of images/musa without it.

It is the vendor stage of images/sim, so that the musa Dockerfile runs over what the simulated image is laid over.

    python ci/standin.py TAG [CACHE]     # in an environment with verl-musa; uses the engine at hand
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from verl_musa.image.base import prepare_base
from verl_musa.image.build import build_facts, default_cache, write_context
from verl_musa.image.engine import find_engine
from verl_musa.image.pins import load_pins
from verl_musa.image.wheels import check_locks, fetch


def main(tag: str, cache: Path) -> None:
    """Build the stand-in and call it ``tag``."""
    pins, engine = load_pins("sim"), find_engine()
    log = cache / "standin.log"
    locks = check_locks(pins)
    base = prepare_base(
        pins, engine, given=None, registry=None, cache=cache / "bases", log=log, progress=print
    )
    wheels = fetch(pins, locks, cache / "wheels", log, print)
    with tempfile.TemporaryDirectory(prefix="context-", dir=cache) as folder:
        write_context(Path(folder), pins, locks, wheels, build_facts(pins, base, locks, engine))
        arguments = ["--target", "vendor", "--tag", tag, "--build-arg", f"BASE={base.runtime}"]
        engine.build(
            Path(folder), [*arguments, "--build-arg", f"BUILD_BASE={base.build}"], log, lambda _: None
        )
    print(engine.image_id(tag))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else default_cache())
