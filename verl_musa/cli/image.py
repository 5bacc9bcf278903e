"""``verl-musa image``: build images, show what they and environments are made of, hold them against it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from verl_musa.cli.options import Site

if TYPE_CHECKING:
    from verl_musa.image.provenance import Provenance

app = typer.Typer(help="Build, verify and compare images and environments.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Reference = Annotated[
    str | None,
    typer.Argument(help="An image that the engine has; left out: the environment that this runs in."),
]


@app.command()
def build(
    image: Annotated[str, typer.Argument(help="Folder below images/.")] = "sim",
    *,
    base: Annotated[
        str | None,
        typer.Option(metavar="REF", help="A base of your own: image id, name, or tar of `docker save`."),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Run every step again.")] = False,
    tag: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the result.")] = None,
    run_as: Annotated[str, typer.Option(metavar="USER", help="User of the image: root or verl.")] = "root",
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where bases and fetched packages are kept.", file_okay=False),
    ] = None,
    site: Site = None,
    as_json: AsJson = False,
) -> None:
    """Build an image from its pins and verify it inside."""
    from verl_musa.checks import render, to_json
    from verl_musa.image.build import BuildOptions, build_image, site_registry
    from verl_musa.recipe import load_site

    options = BuildOptions(
        image=image,
        base=base,
        no_cache=no_cache,
        tag=tag,
        run_as=run_as,
        registry=site_registry(load_site(site).values),
        cache=cache,
    )
    built = build_image(options, lambda line: typer.echo(line, err=as_json))
    if as_json:
        facts = {
            "reference": built.reference,
            "id": built.image_id,
            "content": built.content,
            "log": str(built.log),
        }
        typer.echo(json.dumps({**facts, **to_json(built.results)}, indent=2, ensure_ascii=False))
        return
    render(built.results, Console())
    typer.echo(f"image {built.reference}\nid {built.image_id}\ncontent sha256:{built.content}")


@app.command()
def lock(
    images: Annotated[list[str] | None, typer.Argument(help="Images; left out: all.")] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where fetched packages are kept.", file_okay=False)
    ] = None,
) -> None:
    """Write the hash-locked requirements of images from images/*/requirements-*.txt."""
    from verl_musa.image.build import default_cache
    from verl_musa.image.pins import list_images, load_pins
    from verl_musa.image.wheels import check_locks, make_locks

    for name in images or list_images():
        pins = load_pins(name)
        for file in make_locks(pins, (cache or default_cache()) / "wheels", typer.echo):
            typer.echo(f"wrote {file}")
        check_locks(pins)


@app.command()
def show(
    reference: Reference = None,
    licences: Annotated[
        bool, typer.Option("--licences", help="List the licence of each package instead.")
    ] = False,
    sbom: Annotated[bool, typer.Option("--sbom", help="Print the SBOM (CycloneDX) instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what an image or this environment is made of."""
    from verl_musa.image.licences import licence_rows

    if sbom or licences:
        document = _sbom(reference)
        if sbom:
            sys.stdout.write(json.dumps(document, indent=2) + "\n")
        elif as_json:
            typer.echo(json.dumps([list(row) for row in licence_rows(document)], indent=2))
        else:
            _table(("package", "version", "licence"), licence_rows(document))
        return
    found = _provenance(reference)
    if as_json:
        typer.echo(json.dumps(dict(found.facts), indent=2, ensure_ascii=False))
        return
    build_facts: dict[str, Any] = found.facts["build"]
    git = build_facts.get("git", {})
    dirty = {True: ", with changes", False: "", None: ""}[git.get("dirty")]
    rows: list[tuple[str, ...]] = [
        ("kind", found.kind),
        ("content", f"sha256:{found.content}"),
        ("base", build_facts.get("base", {}).get("identity", "-")),
        ("commit", f"{git.get('commit') or '-'}{dirty}"),
        (
            "patch series",
            f"{found.facts['series']['digest']}, {len(found.facts['series']['patches'])} patches",
        ),
        ("python", found.facts["python"]),
        ("packages", str(len(found.packages))),
    ]
    _table(("what", "value"), rows)
    _table(("package", "version", "place", "sha256"), [
        (key, entry["version"], entry["place"], entry["sha256"][:16]) for key, entry in found.packages.items()
    ])  # fmt: skip


@app.command()
def record(
    folder: Annotated[
        Path | None, typer.Argument(help="Where; left out: share/verl-musa of this environment.")
    ] = None,
    filesystem: Annotated[
        bool, typer.Option("--filesystem", help="The whole file system, as an image's build does.")
    ] = False,
) -> None:
    """Record what this environment is made of, for `verify` to hold it against."""
    from verl_musa.image.verify import record as do_record

    found = do_record(folder, filesystem=filesystem)
    typer.echo(
        f"{found.kind} of {len(found.packages)} packages, {len(found.files)} entries: sha256:{found.content}"
    )


@app.command()
def verify(
    reference: Reference = None,
    filesystem: Annotated[
        bool,
        typer.Option("--filesystem/--no-filesystem", help="Inside an image: read its whole file system."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Hold an image or this environment against what was recorded, and see whether it works.

    Exit code: 0 when nothing failed, 2 when a check failed, 3 when nothing failed but something could not be looked at.
    """
    from verl_musa.checks import exit_code, render, to_json

    if reference is None:
        from verl_musa.image.verify import verify_environment

        results = verify_environment(filesystem=filesystem)
    else:
        from verl_musa.image.engine import find_engine
        from verl_musa.image.inside import verify_image

        results = verify_image(find_engine(), reference)
    if as_json:
        typer.echo(json.dumps(to_json(results), indent=2, ensure_ascii=False))
    else:
        render(results, Console())
    raise typer.Exit(exit_code(results))


@app.command()
def diff(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Image, provenance.json, run directory, or '.' for this environment."
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    as_json: AsJson = False,
) -> None:
    """Tell which packages, patches and files of two images or environments differ. Exit code 1: some do."""
    from dataclasses import asdict

    from verl_musa.image.diff import diff as compare

    found = compare(_any(before), _any(after))
    if as_json:
        typer.echo(json.dumps({**asdict(found), "same": found.same}, indent=2, ensure_ascii=False))
    else:
        for line in found.lines():
            typer.echo(line)
    if not found.same:
        raise typer.Exit(1)


@app.command()
def save(
    reference: Annotated[str, typer.Argument(help="An image that the engine has.")],
    target: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The tar to write; FILE.sha256 and FILE.json lie beside it."),
    ],
) -> None:
    """Write an image as a tar with its checksum and provenance, for a machine without a network."""
    from verl_musa.image.archive import save_image
    from verl_musa.image.engine import find_engine

    typer.echo(f"sha256:{save_image(find_engine(), reference, target)}  {target}")


@app.command()
def load(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A tar of `verl-musa image save`.", dir_okay=False)
    ],
) -> None:
    """Load a saved image once its checksum fits, and see that it is the one that was saved."""
    from verl_musa.image.archive import load_image
    from verl_musa.image.engine import find_engine

    reference, content = load_image(find_engine(), source)
    typer.echo(f"image {reference}\ncontent sha256:{content}")


def _provenance(reference: str | None) -> Provenance:
    if reference is None:
        from verl_musa.image.provenance import environment_provenance, recorded

        return recorded() or environment_provenance()
    from verl_musa.image.engine import find_engine
    from verl_musa.image.inside import provenance_of

    return provenance_of(find_engine(), reference)


def _any(named: str) -> Provenance:
    """What ``named`` is made of; of an image the files that it holds, whatever it says of itself."""
    from verl_musa.image.diff import from_path
    from verl_musa.image.provenance import Provenance, environment_provenance

    if named == ".":
        return environment_provenance()
    if Path(named).exists():
        return from_path(Path(named))
    from verl_musa.image.engine import find_engine
    from verl_musa.image.inside import listing_of, provenance_of

    engine = find_engine()
    return Provenance(provenance_of(engine, named).facts, listing_of(engine, named))


def _sbom(reference: str | None) -> dict[str, Any]:
    from verl_musa.image.licences import read_sbom

    return read_sbom(reference)


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    table = Table(show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
