"""Checks of what a recipe names - model, checkpoints, prompts, reward function, sizes - before anything is started; and the prompts.

Public face: :func:`check_recipe` for the results, :func:`require` to stop at the first failure. What `verl-musa data` does lies in the
modules ``prepare``, ``check`` and ``show``, which import pyarrow and numpy when they are called.
"""

from __future__ import annotations

from collections.abc import Sequence

from verl_musa.checks import Result, Status, run_checks
from verl_musa.data import (
    arithmetic,
    conversion,
    model,
    parquet,
    placement,
    placement_memory,
    reward,
    scorers,
    server,
)
from verl_musa.data.subject import Subject
from verl_musa.errors import DataError
from verl_musa.recipe import Resolved

__all__ = ["CHECKS", "FILE_CHECKS", "Subject", "check_recipe", "require"]

CHECKS = (
    *model.CHECKS,
    *conversion.CHECKS,
    *parquet.CHECKS,
    *reward.CHECKS,
    *scorers.CHECKS,
    *arithmetic.CHECKS,
    *server.CHECKS,
    *placement.CHECKS,
    *placement_memory.CHECKS,
)

FILE_CHECKS = (
    *model.CHECKS,
    *conversion.CHECKS,
    *parquet.CHECKS,
    *scorers.CHECKS,
    *(
        check
        for check in (*reward.CHECKS, *arithmetic.CHECKS)
        if check.name in {"reward.scores", "trainer.schedule"}
    ),
)
"""Those that read the model's folder, a checkpoint or the data: where these are not at hand, they wait for the run."""


def check_recipe(resolved: Resolved, *, assets_ready: bool = True) -> list[Result]:
    """Run every check on ``resolved``. Reads files and starts one bounded process for the reward function."""
    return run_checks(CHECKS, Subject(resolved, assets_ready))


def require(results: Sequence[Result]) -> None:
    """Stop where a check failed; WARN and UNKNOWN pass.

    Raises:
        DataError: the first failure in full, the others by name.
    """
    failed = [result for result in results if result.status is Status.FAIL]
    if not failed:
        return
    first, *others = failed
    also = f"; also failed: {', '.join(other.check for other in others)}" if others else ""
    raise DataError(
        f"check {first.check} failed",
        where=first.where or None,
        found=first.evidence,
        expected=f"{first.looks_at} to be usable",
        fix=first.fix + also,
    )
