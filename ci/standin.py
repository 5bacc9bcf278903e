"""A base with torch and a simulated torch_musa in its own Python, in the place of the vendor's: for builds of images/musa without it.

It is the vendor stage of images/sim with torchvision and kernels (the stub's), which a vendor brings too: the musa Dockerfile then
runs over what the simulated image is laid over.

    python ci/standin.py TAG [CACHE]     # in an environment with verl-musa; uses the engine at hand
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from verl_musa.image.base import prepare_base
from verl_musa.image.build import build_facts, default_cache, write_context
from verl_musa.image.engine import find_engine
from verl_musa.image.pins import load_pins
from verl_musa.image.wheels import check_locks, fetch

SECOND = """FROM {below}
COPY {wheel} /wheel.zip
RUN python3 -m zipfile -e /wheel.zip /usr/local/lib/python3.11/dist-packages && rm /wheel.zip
COPY kernels /usr/local/lib/python3.11/dist-packages
"""


def main(tag: str, cache: Path) -> None:
    """Build the stand-in and call it ``tag``."""
    pins, engine = load_pins("sim"), find_engine()
    log = cache / "standin.log"
    locks = check_locks(pins)
    base = prepare_base(
        pins, engine, given=None, registry=None, cache=cache / "bases", log=log, progress=print
    )
    wheels = fetch(pins, locks, cache / "wheels", log, print)
    wheel = next(file for file in wheels["rollout"] if file.name.startswith("torchvision-"))
    with tempfile.TemporaryDirectory(prefix="context-", dir=cache) as folder:
        context, second = Path(folder, "vendor"), Path(folder, "torchvision")
        for made in (context, second):
            made.mkdir()
        write_context(context, pins, locks, wheels, build_facts(pins, base, locks, engine))
        arguments = ["--build-arg", f"BASE={base.runtime}", "--build-arg", f"BUILD_BASE={base.build}"]
        engine.build(
            context, ["--target", "vendor", "--tag", f"{tag}-vendor", *arguments], log, lambda _: None
        )
        (second / "Dockerfile").write_text(
            SECOND.format(below=f"{tag}-vendor", wheel=wheel.name), encoding="utf-8"
        )
        shutil.copyfile(wheel, second / wheel.name)
        kernels = pins.folder.parents[1] / "ci" / "sgl_kernel_stub" / "src"
        shutil.copytree(kernels, second / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
        engine.build(second, ["--tag", tag], log, lambda _: None)
    print(engine.image_id(tag))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else default_cache())
