"""``verl-musa explain``: what a parameter means, its value, and where that was set."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from verl_musa.cli.options import Sets, Site, Variants


def explain(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="A key of verl's configuration, or an end of one that fits no other.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="Whose value to show; left out: verl's defaults.")
    ] = None,
    *,
    list_: Annotated[bool, typer.Option("--list", help="List the parameters that are described, by group.")] = False,
    variants: Variants = None,
    sets: Sets = None,
    site: Site = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (with a 'schema' number).")] = False,
) -> None:
    """Explain a parameter: meaning, value, where it was set, verl's default, and what has to be true of it."""
    from verl_musa.recipe import load_recipe, load_site, resolve
    from verl_musa.rules import explain as look_up
    from verl_musa.rules.explain import GROUPS, table

    console = Console(highlight=False)
    if list_:
        for group in GROUPS:
            console.print(f"[bold]{group}[/]")
            for name, entry in table().items():
                if entry["group"] == group:
                    console.print(f"  {name}", soft_wrap=True)
        return
    if key is None:
        raise typer.BadParameter("name a parameter, or give --list")
    resolved = None
    if recipe is not None:
        loaded = load_recipe(recipe, variants=variants or ())
        resolved = resolve(
            loaded, run_dir=Path("runs", loaded.name, "RUN-ID"), site=load_site(site), sets=sets or (), without_site=True
        )
    found = look_up(key, resolved)
    if as_json:
        typer.echo(json.dumps({"schema": 1, "recipe": resolved and resolved.recipe.title, **asdict(found)}, indent=2, ensure_ascii=False, default=str))
        return
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    console.print(f"[bold]{found.key}[/]" + (f"  ({found.group})" if found.group else ""), soft_wrap=True)
    lines.add_row("means", found.means or "not described here; verl's own comment stands beside its default")
    if resolved is not None:
        reference = f", from {found.written}" if found.written else ""
        lines.add_row("value", f"{_shown(found.value)}{reference}  in {resolved.recipe.title}")
        lines.add_row("set at", found.origin or "nowhere: verl's default holds")
    lines.add_row("verl's default", _shown(found.default))
    if found.default_origin:
        lines.add_row("", found.default_origin)
    for name, values in (("holds", found.holds), ("checked by", found.checks)):
        for index, value in enumerate(values):
            lines.add_row(name if index == 0 else "", value)
    console.print(lines)


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
