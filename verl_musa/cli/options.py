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
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--hosts",
        metavar="NAME,NAME",
        help="The hosts, separated by commas: names of the site's hosts or, where it has none, of any ('node1 slots=8'). Those beyond the needed number are spares.",
    ),
]
Head = Annotated[
    str | None, typer.Option("--head", metavar="NAME", help="The host for Ray's head; by default the site's.")
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=1,
        metavar="N",
        help="Number of hosts; by default the recipe's, or all that --hosts names.",
    ),
]
DevicesPerNode = Annotated[
    int | None,
    typer.Option(
        "--devices-per-node",
        min=1,
        max=64,
        metavar="N",
        help="Devices of each host; by default the hosts' slots, or the recipe's.",
    ),
]
Retries = Annotated[
    int,
    typer.Option(
        "--retries",
        min=0,
        max=100,
        metavar="N",
        help="How often a run that has lost a host goes on by itself from its last verified checkpoint.",
    ),
]


def split_hosts(given: list[str] | None) -> list[str]:
    """The hosts of ``--hosts``, which may be given again."""
    return [part.strip() for text in given or () for part in text.split(",") if part.strip()]
