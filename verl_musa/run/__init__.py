"""From a recipe to a finished run directory: bring-up, submit, follow, stop, resume.

Public face: :class:`RunOptions` and :func:`run_recipe`. The rest is imported on first use, so that the guardian
process stays small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from verl_musa.checks import Result

STALL_MINUTES = 30.0

GateMode = Literal["before", "only", "off"]
"""The correctness gate: before training, instead of it, or not at all."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a user asks of ``verl-musa run``.

    Attributes:
        recipe: name, unique prefix or folder of a recipe, with ``@first+second`` for variants.
        variants: further variants of it, in order.
        sets: ``key=value`` overrides, in order.
        resume: run id, unique prefix of one, or path of the run to go on with; None for a new run.
        dry_run: check and write everything, start nothing.
        site: the ``site.yaml`` to use; None for the one found from the working directory.
        runs_dir: folder below which run directories are made.
        ray_port: port of Ray's own server; None for a free one.
        dashboard_port: port of Ray's dashboard and Jobs API; None for a free one.
        stall_minutes: longest time without a new training step.
        allow_drift: ids of patches that may be applied although their target has changed.
        gate: what is done about the day-0 correctness gate.
        unlocked: ``NAME=why`` for each item of recipe.lock that may differ.
        hosts: hosts of the run, over ssh; empty for those of the site where the recipe is written for several.
        head: the host for Ray's head; None for the site's.
        nodes: number of hosts; None for the recipe's, or as many as ``hosts`` names. Those beyond it are spares.
        devices_per_node: devices of each host; None for the hosts' slots, or the recipe's.
        retries: how often a run that has lost a host goes on by itself from its last checkpoint.
    """

    recipe: str
    variants: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    resume: str | None = None
    dry_run: bool = False
    site: Path | None = None
    runs_dir: Path = Path("runs")
    ray_port: int | None = None
    dashboard_port: int | None = None
    stall_minutes: float = STALL_MINUTES
    allow_drift: tuple[str, ...] = ()
    gate: GateMode = "before"
    unlocked: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    head: str | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    retries: int = 0


def run_recipe(options: RunOptions) -> int:
    """Run a recipe to its end and return the exit code: 0 when it succeeded, 130 when it was interrupted.

    On several hosts a supervisor of its own does the work, and this only shows it: an interrupt then ends the showing, not the run.

    Raises:
        VerlMusaError: bad input or a host that does not fit (exit code 2).
        JobFailedError: the job was started and failed (exit code 1).
    """
    from verl_musa.run.runner import Runner

    return Runner(options).run()


def gate_recipe(options: RunOptions) -> tuple[list[Result], Path]:
    """Run a recipe's job up to and with the correctness gate; return the results and the run directory.

    Progress goes to standard error. Results are returned for a gate that fails too.

    Raises:
        VerlMusaError: bad input or a host that does not fit (exit code 2), or a recipe that the gate does not fit.
        JobFailedError: the job failed before the gate had its say (exit code 1).
        KeyboardInterrupt: interrupted.
    """
    from verl_musa.run.runner import gate_only

    return gate_only(replace(options, gate="only"))
