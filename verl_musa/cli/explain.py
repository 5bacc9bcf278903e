"""``verl-musa explain``: what a parameter means, its value, and where that was set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from verl_musa.cli.options import Sets, Site, Variants

if TYPE_CHECKING:
    from verl_musa.rules import Explanation


def explain(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]", help="A key of verl's configuration, or an end of one that fits no other."
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="Whose value to show; left out: verl's defaults.")
    ] = None,
    *,
    list_: Annotated[
        bool, typer.Option("--list", help="List the parameters that are described, by group.")
    ] = False,
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
        _print_list(console, GROUPS, table())
        return
    if key is None:
        raise typer.BadParameter("name a parameter, or give --list")
    resolved = None
    if recipe is not None:
        loaded = load_recipe(recipe, variants=variants or ())
        run_dir = Path("runs", loaded.name, "RUN-ID")
        resolved = resolve(loaded, run_dir=run_dir, site=load_site(site), sets=sets or (), without_site=True)
    found = look_up(key, resolved)
    title = None if resolved is None else resolved.recipe.title
    if as_json:
        whole = {"schema": 1, "recipe": title, **asdict(found)}
        typer.echo(json.dumps(whole, indent=2, ensure_ascii=False, default=str))
        return
    _print(console, found, title)


def _print_list(console: Console, groups: Sequence[str], entries: Mapping[str, Mapping[str, Any]]) -> None:
    for group in groups:
        console.print(f"[bold]{group}[/]")
        for name in (name for name, entry in entries.items() if entry["group"] == group):
            console.print(f"  {name}", soft_wrap=True)


def _print(console: Console, found: Explanation, title: str | None) -> None:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    console.print(f"[bold]{found.key}[/]" + (f"  ({found.group})" if found.group else ""), soft_wrap=True)
    lines.add_row("means", found.means or "not described here; verl's own comment stands beside its default")
    if title is not None:
        lines.add_row("value", f"{_shown(found.value)}  in {title}")
        if found.written:
            lines.add_row("", f"by reference: {found.written}")
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
