"""The whole plan of a run on several hosts, as far as it can be told on a machine without any of them."""

from __future__ import annotations

import shlex
from pathlib import Path

from verl_musa.checks import Status
from verl_musa.data import Subject, require
from verl_musa.data.arithmetic import ROLLOUT
from verl_musa.data.sizes import CARD_GIB, needs_reference, phases, server_layout, shape_of, trainer_layout
from verl_musa.errors import HostError
from verl_musa.observe.display import Display
from verl_musa.plan import GIB, ModelShape, server_memory, step_time
from verl_musa.recipe import Resolved, Site
from verl_musa.rules import Report, check_recipe
from verl_musa.run.directory import RunDirectory
from verl_musa.run.launch import job_command


def plan_lines(resolved: Resolved) -> list[str]:
    """Image, weights, data, hosts, layout, memory by phase, time, environment and command, a line each."""
    recipe, subject = resolved.recipe, Subject(resolved)
    cluster, model = recipe.cluster, recipe.model
    lines = [
        f"recipe      {recipe.title} {recipe.version}: {recipe.summary}",
        f"image       images/{recipe.image}",
        f"model       {model.path}"
        + (f"  ({model.hub} at {(model.revision or 'no revision')[:12]})" if model.hub else ""),
    ]
    lines += [
        f"conversion  {', '.join(one.roles)}: {one.output}  ({one.spec} names, {one.dtype or 'types as they are'}{', value head' if one.value_head else ''})"
        for one in recipe.conversion
    ]
    for split in ("train", "val"):
        source = recipe.data.sources.get(split)
        lines.append(
            f"data        {split}: {', '.join(getattr(recipe.data, split))}"
            + (f"  (from {source})" if source else "")
        )
    lines.append(
        f"nodes       {cluster.nodes} hosts x {cluster.devices_per_node} {recipe.device.type} devices, {cluster.cpus_per_node} logical CPUs and {cluster.host_memory_gib:g} GiB each"
    )
    if recipe.network is not None:
        lines.append(
            f"network     {recipe.network.profile}"
            + (f" over {recipe.network.interface}" if recipe.network.interface else "")
        )
    lines.append(f"layout      {_layout(subject)}")
    shape = shape_of(subject)
    if shape is not None:
        lines += [*_memory(subject, shape), *_time(subject, shape)]
    for name, text in sorted(resolved.runtime_env.get("env_vars", {}).items()):
        lines.append(f"variable    {name}={text}")
    lines.append(f"command     {shlex.join(job_command(recipe, RunDirectory(resolved.run_dir)))}")
    lines.append(f"writes to   {resolved.run_dir}")
    return lines


def _layout(subject: Subject) -> str:
    layout, servers = trainer_layout(subject), server_layout(subject)
    sizes = {"TP": layout.tp, "PP": layout.pp, "CP": layout.cp, "EP": layout.ep, "DP": layout.data_parallel}
    shown = " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1 or name == "DP")
    return f"{layout.strategy} {shown} on {layout.world} devices; {subject.select(f'{ROLLOUT}.name')} {servers.replicas} servers of {servers.devices}"


def _memory(subject: Subject, shape: ModelShape) -> list[str]:
    found = []
    for phase in phases(subject, shape):
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in phase.parts)
        found.append(
            f"memory      {phase.name}: {phase.total / GIB:.1f} of {CARD_GIB:.0f} GiB a device ({parts}); estimated"
        )
    server = server_memory(shape, server_layout(subject))
    return [*found, f"cache       {server.cache_tokens:,} tokens a server"]


def _time(subject: Subject, shape: ModelShape) -> list[str]:
    layout, cluster = trainer_layout(subject), subject.resolved.recipe.cluster
    time = step_time(
        shape,
        sequences=subject.integer("data.train_batch_size") * subject.integer(f"{ROLLOUT}.n"),
        prompt=subject.integer("data.max_prompt_length") // 3,
        response=subject.integer("data.max_response_length"),
        world=layout.world,
        nodes=cluster.nodes,
        reference=needs_reference(subject),
        recompute=layout.recompute,
    )
    low, high = time.step
    shown = (
        f"time        {low / 60:.0f} to {high / 60:.0f} min a step, of which training {time.training[0] / 60:.1f} to {time.training[1] / 60:.1f}; "
        "from rates that public runs report, not measured here"
    )
    return [shown]


def check(resolved: Resolved, display: Display) -> Report:
    """Check the recipe, and say what was found.

    Raises:
        DataError: a check failed.
    """
    display.phase("checking the recipe")
    report = check_recipe(resolved)
    require(report.results)
    for result in report.results:
        if result.status is not Status.OK:
            display.note(
                f"{result.status.value} {result.check}: {result.evidence}"
                + (f" -> {result.fix}" if result.fix else "")
            )
    waiting = f"; {len(report.deferred)} checks of files wait for the hosts" if report.deferred else ""
    display.note(f"{len(report.results)} checks, none failed{waiting}")
    return report


def refuse(resolved: Resolved, site: Site, lacking: HostError | None) -> None:
    """Say in one message what is missing for a run on several hosts; do nothing where nothing is.

    Args:
        resolved: the recipe.
        site: the site.
        lacking: why the hosts cannot be chosen; None where they can.

    Raises:
        HostError: something is missing.
    """
    cluster = resolved.recipe.cluster
    missing = []
    if site.source is None:
        missing.append("site.yaml: there is none")
    missing += [
        f"{name}: not set in site.yaml, used at {_short(where)}"
        for name, where in resolved.missing_site.items()
    ]
    if lacking is not None:
        told = "; ".join(part for part in (lacking.message, lacking.found) if part)
        missing.append(f"hosts (a hostfile, `hosts:` or --hosts): {told}")
    if not missing:
        return
    raise HostError(
        f"{resolved.recipe.title} needs {cluster.nodes} hosts of {cluster.devices_per_node} devices, and this machine does not know them",
        where=resolved.recipe.document.where(("cluster", "nodes")),
        found="; ".join(missing),
        expected="site.yaml with shared, its hosts and the values that the recipe uses",
        fix=(lacking.fix if lacking is not None and site.source is not None else None)
        or "copy site.example.yaml to site.yaml beside the checkout and fill it in; `--dry-run` shows the plan without it",
    )


def _short(where: str) -> str:
    return "/".join(Path(where).parts[-2:])
