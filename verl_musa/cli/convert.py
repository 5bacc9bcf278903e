"""``verl-musa convert``: weights between Hugging Face's layout and Megatron-Core's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from verl_musa.cli.options import RecipeName, Sets, Site, Variants

if TYPE_CHECKING:
    from verl_musa.checkpoint.to_mcore import Progress

app = typer.Typer(
    help="Convert weights between Hugging Face and Megatron-Core, and prove the result.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (with a 'schema' number) for programs.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted conversion.")]
Jobs = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Files written at once.")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float32, float16 or bfloat16; default: as the source.")
]


@app.command("to-mcore")
def to_mcore(
    source: Annotated[Path, typer.Argument(help="Model folder in Hugging Face layout.")],
    output: Annotated[Path, typer.Argument(help="Checkpoint folder to make; must not exist, or be empty.")],
    *,
    spec: Annotated[
        str,
        typer.Option("--spec", help="Key names: te, or local for Megatron-Core's unpatched local layers."),
    ] = "te",
    dtype: Dtype = None,
    pad_vocab: Annotated[
        int, typer.Option("--pad-vocab", metavar="N", help="Make the vocabulary a multiple of N.")
    ] = 1,
    value_head: Annotated[
        bool, typer.Option("--value-head", help="Write a critic: a value head in place of the output layer.")
    ] = False,
    tp: Annotated[
        int, typer.Option("--tp", min=1, help="Check that the model can run under this layout.")
    ] = 1,
    pp: Annotated[int, typer.Option("--pp", min=1)] = 1,
    ep: Annotated[int, typer.Option("--ep", min=1)] = 1,
    cp: Annotated[int, typer.Option("--cp", min=1)] = 1,
    etp: Annotated[int | None, typer.Option("--etp", min=1, help="Experts' TP; default: --tp.")] = None,
    world: Annotated[int | None, typer.Option("--world", min=1, help="Devices in all.")] = None,
    resume: Resume = False,
    jobs: Jobs = 2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check only; read and write no weights.")
    ] = False,
) -> None:
    """Convert a Hugging Face model to a torch_dist checkpoint that loads under any layout."""
    from verl_musa.checkpoint import Layout, ToMcore, plan
    from verl_musa.checkpoint import to_mcore as convert

    options = ToMcore(
        source=source,
        output=output,
        layer_spec=spec,
        dtype=dtype,
        pad_vocab=pad_vocab,
        value_head=value_head,
        layout=Layout(tp=tp, pp=pp, ep=ep, cp=cp, etp=etp, world=world),
        resume=resume,
        jobs=jobs,
    )
    if dry_run:
        ready = plan(options)
        typer.echo(
            f"{len(ready.shapes)} Megatron-Core tensors, {ready.source_bytes / 2**30:.2f} GiB to convert"
        )
        return
    with _progress("converting") as progress:
        folder = convert(options, progress)
    typer.echo(f"{folder}: verify it with: verl-musa convert verify {source} {folder}")


@app.command("recipe")
def recipe_(
    recipe: RecipeName,
    *,
    variants: Variants = None,
    sets: Sets = None,
    site: Site = None,
    resume: Resume = False,
    jobs: Jobs = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check only; convert nothing.")] = False,
) -> None:
    """Convert the weights that a recipe declares, as it declares them; what is there already is checked, not redone."""
    from verl_musa.checkpoint.from_recipe import convert_recipe
    from verl_musa.recipe import ensure_assets, load_recipe, load_site, resolve

    found = load_recipe(recipe, variants=variants or ())
    if not found.conversion:
        typer.echo(f"{found.title} declares no conversion: its trainer loads Hugging Face weights")
        return
    run_dir = Path("runs", found.name, "RUN-ID")
    resolved = resolve(found, run_dir=run_dir, site=load_site(site), sets=sets or ())
    if found.assets is not None:
        ensure_assets(found, progress=lambda line: typer.echo(line, err=True))
    with _progress("converting") as progress:
        made = convert_recipe(
            resolved, jobs=jobs, resume=resume, dry_run=dry_run, say=typer.echo, progress=progress
        )
    for one in made:
        typer.echo(f"verify it with: verl-musa convert verify {one.options.source} {one.options.output}")


@app.command("to-hf")
def to_hf(
    checkpoint: Annotated[
        Path, typer.Argument(help="Checkpoint folder; also one of veRL's, such as global_step_10.")
    ],
    output: Annotated[Path, typer.Argument(help="Model folder to make; must not exist, or be empty.")],
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="Folder with config.json and tokenizer; default: what lies with the checkpoint."
        ),
    ] = None,
    dtype: Dtype = None,
    resume: Resume = False,
) -> None:
    """Convert a torch_dist checkpoint, from here or from training, to a Hugging Face model."""
    from verl_musa.checkpoint import ToHf
    from verl_musa.checkpoint import to_hf as convert

    options = ToHf(checkpoint=checkpoint, output=output, config=config, dtype=dtype, resume=resume)
    with _progress("converting") as progress:
        folder = convert(options, progress)
    typer.echo(f"{folder}: verify it with: verl-musa convert verify {folder} {checkpoint}")


@app.command("verify")
def verify(
    source: Annotated[Path, typer.Argument(help="Model folder in Hugging Face layout.")],
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder.")],
    *,
    logits: Annotated[
        int, typer.Option("--logits", metavar="N", min=0, help="Also run N prompts through both, in fp32.")
    ] = 0,
    megatron: Annotated[
        Path | None,
        typer.Option(
            "--megatron", metavar="DIR", help="Folder that holds the package megatron (with --logits)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every tensor of both folders by its content, and the checkpoint's files with its index.

    Exit code: 0 when all is equal, 2 when something differs, 3 when something could not be looked at.
    """
    from verl_musa.checkpoint import Pair
    from verl_musa.checkpoint import verify as compare
    from verl_musa.checks import exit_code, render, to_json

    with _progress("comparing") as progress:
        results = compare(Pair(source, checkpoint, logits, megatron, progress))
    if as_json:
        typer.echo(json.dumps(to_json(results), indent=2, ensure_ascii=False))
    else:
        render(results, Console())
    raise typer.Exit(exit_code(results))


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="A model folder or a checkpoint folder.")],
    as_json: AsJson = False,
) -> None:
    """Show what a folder of weights holds."""
    from rich.table import Table

    from verl_musa.checkpoint import describe

    found = describe(path)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    table = Table(show_edge=False, pad_edge=False)
    for name in ("tensor", "type", "shape", "boxes"):
        table.add_column(name, overflow="fold")
    for tensor in found["tensors"]:
        shape = " x ".join(str(size) for size in tensor["shape"])
        table.add_row(tensor["name"], tensor["dtype"], shape, str(tensor["boxes"]))
    console = Console()
    console.print(table)
    model, made = found["model"], found["manifest"]
    console.print(
        f"{found['kind']}, {found['files']} files, {found['bytes'] / 2**30:.2f} GiB", highlight=False
    )
    if model is not None:
        numbers = ", ".join(f"{key} {value}" for key, value in model.items() if key != "architecture")
        console.print(f"{model['architecture']}: {numbers}", highlight=False)
    if made is not None:
        console.print(
            f"{made['direction']} by {made['made_by']}, mapping {made['mapping_version']}", highlight=False
        )


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    """A bar with bytes, speed and time left; nothing where stderr is no terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("{task.description}", *columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
