"""Options that several verbs share: one spelling and one help text for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipeName = Annotated[
    str,
    typer.Argument(help="Name, unique prefix or folder of a recipe; NAME@VARIANT+VARIANT for variants."),
]
Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", metavar="NAME", help="Lay this variant over the recipe; may be given again."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key of verl's config; may be given again."),
]
Site = Annotated[
    Path | None, typer.Option("--site", metavar="FILE", help="The site.yaml to use.", dir_okay=False)
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--hosts",
        metavar="NAME,NAME",
        help="Only these hosts of the site; hosts of your own where it names none.",
    ),
]
Head = Annotated[
    str | None,
    typer.Option(
        "--head", metavar="NAME", help="Where Ray's head and the driver run; by default the site's head."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RunsDir = Annotated[
    Path,
    typer.Option("--runs-dir", metavar="DIR", help="Where run directories are made.", file_okay=False),
]
RayPort = Annotated[
    int | None, typer.Option("--ray-port", metavar="PORT", help="Port of Ray; by default a free one.")
]
DashboardPort = Annotated[
    int | None,
    typer.Option("--dashboard-port", metavar="PORT", help="Port of Ray's dashboard; by default a free one."),
]


def split_hosts(given: list[str] | None) -> list[str]:
    """The texts of ``--hosts``, which may be given again and may each name several hosts."""
    return [name for text in given or () for name in text.split(",") if name.strip()]
