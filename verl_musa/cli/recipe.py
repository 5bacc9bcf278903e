"""``verl-musa recipe``: list, show and check recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from verl_musa.cli.options import Variants

app = typer.Typer(help="List, show and check recipes.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        help="Name of a recipe, a unique start of it, or the path of its folder; NAME@VARIANT for a variant."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key of verl's config, as in config.yaml; may be repeated. A key that verl lacks needs '+'.",
    ),
]
Site = Annotated[
    Path | None,
    typer.Option(
        "--site", help="The site.yaml to use. Default: $VERL_MUSA_SITE, else the nearest one upwards."
    ),
]


@app.command("list")
def list_() -> None:
    """List the recipes that can be named, with their one-line summaries.

    Looked for in $VERL_MUSA_RECIPES (folders joined by ':') when set, else in the nearest 'recipes' folder upwards.
    """
    from verl_musa.errors import VerlMusaError
    from verl_musa.recipe import list_recipes, list_variants, load_recipe

    table = Table(show_edge=False, pad_edge=False)
    for column in ("recipe", "version", "device", "summary", "variants"):
        table.add_column(column, overflow="fold")
    for name, folder in list_recipes().items():
        try:
            recipe = load_recipe(str(folder.resolve()))
        except VerlMusaError as error:
            table.add_row(name, "?", "?", f"cannot be read: {error.where or ''} {error.message}")
            continue
        kind = f"{recipe.device.type}, simulated" if recipe.device.simulated else recipe.device.type
        table.add_row(name, recipe.version, kind, recipe.summary, ", ".join(list_variants(folder)))
    Console().print(table if table.row_count else "no recipes found")


@app.command("show")
def show(
    name: Name,
    *,
    resolved: Annotated[bool, typer.Option("--resolved", help="Print verl's whole composed config.")] = False,
    portable: Annotated[
        bool,
        typer.Option(
            "--portable",
            help="With --resolved: name this machine's folders symbolically, as golden files hold them.",
        ),
    ] = False,
    variants: Variants = None,
    sets: Sets = None,
    site: Site = None,
) -> None:
    """Print a recipe as written, or with --resolved the config that verl would get.

    --set without --resolved prints the overrides in the order in which they apply, each with its origin.
    """
    from verl_musa.recipe import dump_config, load_recipe, load_site, resolve
    from verl_musa.recipe import portable as make_portable

    recipe = load_recipe(name, variants=variants or ())
    if not resolved and not sets:
        for path in (recipe.document.path, *(one.document.path for one in recipe.layers)):
            sys.stdout.write(path.read_text(encoding="utf-8"))
        return
    found = resolve(
        recipe, run_dir=Path("runs", recipe.name, "RUN-ID"), site=load_site(site), sets=sets or ()
    )
    if resolved:
        sys.stdout.write(dump_config(make_portable(found) if portable else found.config))
        return
    for override in found.overrides:
        sys.stdout.write(f"{override.text}    # {override.origin}\n")


@app.command("check")
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Recipes; NAME@VARIANT for a variant.")
    ] = None,
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="Every recipe that `recipe list` shows, and every variant of each.")
    ] = False,
    variants: Variants = None,
    sets: Sets = None,
    site: Site = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    assets: Annotated[
        bool,
        typer.Option(
            "--assets/--no-assets", help="Make the assets of a named recipe first where they are missing."
        ),
    ] = True,
) -> None:
    """Check recipes before they are run: files, verl's own validation, layout, memory, options that undo each other.

    Works without a cluster, a device or the model: what needs files that are not here waits for the run, and is named.

    Exit code: 0 when nothing failed (warnings are shown), 2 when a check failed or a file has a mistake, 3 when
    nothing failed but something could not be looked at.
    """
    from verl_musa.cli import _check

    if bool(names) == all_:
        raise typer.BadParameter("name recipes, or give --all")
    chosen = _check.everything() if all_ else list(names or ())
    whole = len(chosen) == 1
    found = _check.look_at(
        chosen, variants=variants or (), sets=sets or (), site=site, make_assets=assets and not all_,
        files=not all_, raise_errors=whole and not as_json,
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(_check.to_json(found), indent=2, ensure_ascii=False))
    else:
        _check.render(found, Console(), whole=whole)
    raise typer.Exit(_check.exit_code(found))


@app.command("launch")
def launch(
    name: Name,
    *,
    variants: Variants = None,
    sets: Sets = None,
    site: Site = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it there instead of printing it."),
    ] = None,
) -> None:
    """Print launch.sh: the recipe's job by hand, on the head node of a Ray that is up.

    The script in a recipe's folder is made by this command; values of the site are asked for when it runs.
    """
    from verl_musa.fileio import write_atomic
    from verl_musa.recipe import load_recipe, load_site
    from verl_musa.run.script import recipe_script

    text = recipe_script(load_recipe(name, variants=variants or ()), load_site(site), sets or ())
    if output is None:
        sys.stdout.write(text)
    else:
        write_atomic(output, text, mode=0o755)


@app.command("lock")
def lock(
    name: Name,
    *,
    variants: Variants = None,
    sets: Sets = None,
    site: Site = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; hold the recipe against its lock.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --check: print JSON instead of a table.")
    ] = False,
) -> None:
    """Write down what the recipe consists of here: image, patches, conversion, model, data and config (recipe.lock).

    Exit code of --check: 0 as locked, 2 something differs, 3 the recipe has no lock.
    """
    from verl_musa.checks import exit_code, render, to_json
    from verl_musa.image.lock import check_lock, make_entry, write_entry
    from verl_musa.recipe import ensure_assets, load_recipe, load_site, resolve

    recipe = load_recipe(name, variants=variants or ())
    place = load_site(site)
    found = resolve(recipe, run_dir=Path("runs", recipe.name, "RUN-ID"), site=place, sets=sets or ())
    if recipe.assets is not None:
        ensure_assets(recipe, progress=lambda line: typer.echo(line, err=True))
    if not check:
        typer.echo(f"wrote {write_entry(recipe, make_entry(found, place))}: {recipe.title}")
        return
    locking = check_lock(found, place, {})
    if as_json:
        shown = {
            "recipe": recipe.title,
            "status": locking.status,
            "why": locking.why,
            **to_json(locking.results),
        }
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    elif locking.results:
        render(locking.results, Console())
    else:
        typer.echo(f"{recipe.title}: {locking.why}")
    raise typer.Exit(exit_code(locking.results) if locking.results else 3)


@app.command("extras", context_settings={"ignore_unknown_options": True})
def extras(
    arguments: Annotated[list[str], typer.Argument(help="The arguments of `verl-musa run`.")],
) -> None:
    """Print the extras that a run would need, one on each line; nox installs them before it."""
    import click

    from verl_musa.cli import run
    from verl_musa.run import RunOptions
    from verl_musa.run.prepare import chosen_recipe

    parser = typer.Typer()
    parser.command()(run.run)
    context = typer.main.get_command(parser).make_context("run", list(arguments), resilient_parsing=True)
    given = context.params
    if not given["recipe"]:
        raise click.UsageError("name a recipe; `verl-musa recipe list` shows them")
    options = RunOptions(
        recipe=given["recipe"],
        variants=tuple(given["variants"] or ()),
        resume=given["resume"],
        runs_dir=given["runs_dir"],
    )
    for name in chosen_recipe(options).extras:
        typer.echo(name)
