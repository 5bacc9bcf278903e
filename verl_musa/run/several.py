"""``verl-musa run`` on several hosts, up to where a supervisor takes over: plan, checks, preflight, run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from verl_musa.cluster.bring_up import take_down
from verl_musa.cluster.fleet import Fleet
from verl_musa.cluster.preflight import look, write_clocks
from verl_musa.cluster.preflight.view import Clock
from verl_musa.cluster.software import software_of
from verl_musa.cluster.ssh import Ssh
from verl_musa.errors import HostError
from verl_musa.observe.display import Display
from verl_musa.recipe import Recipe, Resolved, Site, ensure_assets, load_recipe, load_site, resolve, sized
from verl_musa.run import RunOptions, plan_view
from verl_musa.run.directory import RunDirectory, new_run_id
from verl_musa.run.layout import Layout, lay_out, wants_several
from verl_musa.run.phases import tell_results
from verl_musa.run.prepare import Prepared, chosen_recipe, prepare, write_directory
from verl_musa.run.record import load_record
from verl_musa.run.runs import find_of_recipe
from verl_musa.run.supervise import launch


def several(options: RunOptions) -> tuple[RunOptions, Recipe] | None:
    """The options and the recipe of a run on several hosts, new or resumed; None where it is one on this host.

    A run that is named to be resumed is looked for in the site's shared folder, too; the options then hold its path.

    Raises:
        VerlMusaError: no such recipe, variant or run.
    """
    if options.resume is not None:
        site = load_site(options.site)
        run = find_of_recipe(options.resume, load_recipe(options.recipe).name, options.runs_dir, site)
        options = replace(options, resume=str(run.path))
        if load_record(run.record).cluster is None:
            return None
        return options, chosen_recipe(options)
    recipe = chosen_recipe(options)
    return (options, recipe) if wants_several(options, recipe) else None


def start(options: RunOptions, recipe: Recipe, display: Display) -> RunDirectory | None:
    """Check everything, write the run directory and start its supervisor; None for a dry run, which shows the plan.

    Raises:
        VerlMusaError: bad input, or hosts that do not fit.
    """
    site = load_site(options.site)
    before = (
        None if options.resume is None else load_record(RunDirectory(Path(options.resume)).record).cluster
    )
    layout: Layout | None = None
    lacking: HostError | None = None
    try:
        layout = lay_out(options, recipe, site, before)
    except HostError as error:
        lacking = error
    if layout is not None and recipe.assets is not None:
        display.phase("making the recipe's assets")
        ensure_assets(recipe, progress=display.note, cache=layout.cache)
    planned = _planned(options, recipe, site, layout)
    plan_view.check(planned, display)
    if options.dry_run:
        display.close()
    for line in plan_view.plan_lines(planned):
        display.note(line)
    if options.dry_run:
        return None
    plan_view.refuse(planned, site, lacking)
    if layout is None:
        raise AssertionError("refuse() has raised what is lacking")
    return _launch(
        replace(options, runs_dir=layout.runs_dir, site=site.source, recipe=_named(recipe)),
        recipe,
        layout,
        display,
    )


def _named(recipe: Recipe) -> str:
    """The recipe so that it is found from every working directory."""
    return f"{recipe.folder}@{'+'.join(recipe.variants)}" if recipe.variants else str(recipe.folder)


def _planned(options: RunOptions, recipe: Recipe, site: Site, layout: Layout | None) -> Resolved:
    """The recipe in the size of its run, as far as the site is known."""
    if layout is not None:
        run_dir = layout.runs_dir / recipe.name / new_run_id()
        return layout.resolve(recipe, run_dir, options.sets, without_site=True)
    cluster = recipe.cluster
    placed = sized(
        recipe,
        nodes=options.nodes or len(options.hosts) or cluster.nodes,
        devices_per_node=options.devices_per_node or cluster.devices_per_node,
    )
    run_dir = (options.runs_dir / recipe.name / new_run_id()).resolve()
    return resolve(placed, run_dir=run_dir, site=site, sets=options.sets, without_site=True)


def _launch(options: RunOptions, recipe: Recipe, layout: Layout, display: Display) -> RunDirectory:
    fleet = Fleet(Ssh(layout.site), layout.site.python)
    if options.resume is not None:
        _end_leftovers(Path(options.resume).name, layout, fleet, display)
    display.phase("asking the hosts what they run in")
    there = software_of(fleet, layout.hosts, recipe.extras)
    prepared = prepare(options, display, layout, there)
    clocks = preflight(prepared, layout, display)
    write_directory(prepared, None, layout.site.python)
    write_clocks(prepared.run.clocks, clocks)
    launch(prepared.run, options)
    return prepared.run


def _end_leftovers(cluster: str, layout: Layout, fleet: Fleet, display: Display) -> None:
    """Before a resume: end what an earlier attempt left running on any of the hosts; ssh alone may fail."""

    def told(text: str) -> None:
        if "nothing runs" not in text:
            display.note(f"left by an earlier attempt: {text}")

    display.phase("looking for what an earlier attempt left on the hosts")
    take_down(cluster, layout.everybody, fleet, told)


def preflight(prepared: Prepared, layout: Layout, display: Display) -> Mapping[str, Clock]:
    """Look at all hosts before anything is started. Returns their clocks.

    Raises:
        HostError: a check failed.
    """
    display.phase("preflight of the hosts")
    found = look(
        layout.site,
        layout.hosts,
        prepared.resolved,
        Ssh(layout.site),
        display.phase,
        run_dir=prepared.run.path,
        run_id=prepared.run.path.name,
        hold_lock=False,
    )
    tell_results("preflight", found.results, display)
    return found.clocks
