"""The patch series of a run: checked before the start, handed to every process, gathered from all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from verl_musa._start import PLAN_ENV, split_plan
from verl_musa.errors import HostError, JobFailedError
from verl_musa.observe.proof import read_proofs
from verl_musa.patching import activation_env, gather, load_series
from verl_musa.patching.records import digest_plan
from verl_musa.patching.verify import verify
from verl_musa.recipe import Recipe
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import RunRecord

OFF_ENV = "VERL_MUSA_TEST_PATCHES_OFF"
"""For tests, measurements and the search for a culprit: ids, separated by commas, that this run leaves out. Recorded."""


def activation(recipe: Recipe, allow_drift: Sequence[str]) -> dict[str, str]:
    """The variable that makes every process of the run apply the series.

    Raises:
        PatchError: ``allow_drift`` or ``OFF_ENV`` names a patch that is not in the series.
    """
    off = [patch_id for patch_id in os.environ.get(OFF_ENV, "").split(",") if patch_id]
    return activation_env(simulated=recipe.device.simulated, allow_drift=allow_drift, off=off)


def left_out(variables: Mapping[str, str]) -> list[str]:
    """The patches that the plan leaves out although they are for its device."""
    _, plan = split_plan(variables[PLAN_ENV])
    return list(json.loads(plan)["off"])


def plan_digest(variables: Mapping[str, str]) -> str:
    """What each worker's proof has to name as the plan that it runs."""
    return digest_plan(variables[PLAN_ENV])


def refuse_drift(allow_drift: Sequence[str]) -> None:
    """Refuse before the start what a worker would refuse later.

    Raises:
        HostError: an installed upstream is not what a patch was written for, and the patch is not let through.
    """
    drifted = [row for row in verify(load_series()).drifted if row.patch not in allow_drift]
    if drifted:
        row = drifted[0]
        others = sorted({row.patch for row in drifted[1:]} - {row.patch})
        raise HostError(
            f"patch {row.patch} does not fit the installed {row.distribution} {row.version}"
            + (f", and neither do {', '.join(others)}" if others else ""),
            where=row.where or row.target,
            found=f"{row.target}: {row.found}",
            expected=" or ".join(row.expected) or row.note,
            fix="install the version of images/<image>/pins.toml, look at `verl-musa patches verify`, "
            f"or let it through with --allow-drift {row.patch}",
        )


def collect(run: RunDirectory, record: RunRecord, variables: Mapping[str, str]) -> None:
    """Note in ``record`` what all processes applied.

    Raises:
        JobFailedError: one of them applied another set than the rest, or was refused.
    """
    gathered = gather(run.path, plan=variables[PLAN_ENV])
    record.patches = {**gathered.as_json(), "off": left_out(variables)}
    if gathered.problems:
        raise JobFailedError(
            "not every process of the run has applied the same patches",
            found="; ".join(gathered.problems[:5]),
            expected=f"the plan {plan_digest(variables)} in all of {len(read_proofs(run.proofs))} workers and their children",
            fix=f"look at {run.logs / 'patches'}; install one and the same verl-musa and upstream versions everywhere",
        )
