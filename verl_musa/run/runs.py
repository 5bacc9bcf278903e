"""Runs by name, wherever they are: below the folder of runs here, and below the site's shared one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from verl_musa.errors import RunError, VerlMusaError
from verl_musa.recipe import Site
from verl_musa.run.directory import RECORD, RunDirectory, find_any_run, find_run
from verl_musa.run.record import RunRecord, load_record


def runs_folders(runs_dir: Path, site: Site) -> list[Path]:
    """The folders that hold runs: the one that is asked for, then ``${site.shared}/runs``."""
    folders = [runs_dir.absolute()]
    if site.shared is not None:
        folders.append(Path(site.shared) / "runs")
    return list(dict.fromkeys(folders))


def find_named(named: str, runs_dir: Path, site: Site) -> RunDirectory:
    """The run called ``named``: a path, a run id, or a unique prefix of one.

    Raises:
        RunError: none or several fit.
    """
    given = Path(named)
    if (given / RECORD).is_file():
        return RunDirectory(given.resolve())
    folders = runs_folders(runs_dir, site)
    fitting = {
        path.parent.resolve()
        for folder in folders
        for path in folder.glob(f"*/*/{RECORD}")
        if path.parent.name.startswith(named) and named
    }
    exact = {path for path in fitting if path.name == named}
    found = sorted(exact or fitting)
    if len(found) == 1:
        return RunDirectory(found[0])
    if len(folders) == 1:
        return find_any_run(folders[0], named)  # says what is wrong with one folder
    raise RunError(
        f"{'several runs begin' if found else 'no run begins'} with {named!r}",
        where=", ".join(map(str, folders)),
        found=", ".join(path.name for path in found[-5:]) or "none",
        expected="a run id, a unique prefix of one, or the path of a run directory",
        fix="`verl-musa list` shows the runs",
    )


def find_of_recipe(named: str, recipe: str, runs_dir: Path, site: Site) -> RunDirectory:
    """The run of one recipe called ``named``, here or in the site's shared folder.

    Raises:
        RunError: none or several fit.
    """
    found, first = {}, None
    for folder in runs_folders(runs_dir, site):
        try:
            run = find_run(folder, recipe, named)
        except RunError as error:
            first = first or error
        else:
            found[run.path] = run
    if len(found) == 1:
        return next(iter(found.values()))
    if first is not None and not found:
        raise first
    raise RunError(
        f"several runs begin with {named!r}",
        where=", ".join(map(str, runs_folders(runs_dir, site))),
        found=", ".join(map(str, found)),
        expected="the path of a run directory",
        fix="name one of those",
    )


def all_runs(runs_dir: Path, site: Site) -> Iterator[tuple[RunDirectory, RunRecord | None]]:
    """Every run, oldest first, with its record; None where that cannot be read."""
    found = {
        path.parent.resolve()
        for folder in runs_folders(runs_dir, site)
        for path in folder.glob(f"*/*/{RECORD}")
    }
    for path in sorted(found, key=lambda one: one.name):
        run = RunDirectory(path)
        try:
            yield run, load_record(run.record)
        except VerlMusaError:
            yield run, None
