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
