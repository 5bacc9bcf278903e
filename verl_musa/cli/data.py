"""``verl-musa data``: prepare, check and show prompt files in veRL's parquet layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from verl_musa.cli.options import Sets, Site, Variants

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from verl_musa.data.check_lengths import Lengths
    from verl_musa.data.prepare_hub import Fetched
    from verl_musa.data.prepare_mapping import Mapping
    from verl_musa.recipe import Resolved

app = typer.Typer(help="Prepare, check and show prompt files in veRL's layout.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (with a 'schema' number) for programs.")]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe", metavar="NAME", help="Take keys, limits, tokenizer and reward from this recipe."
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="DIR", help="Folder of a model, instead of the recipe's."),
]
CUSTOM = "custom"


@app.command("prepare")
def prepare(
    name: Annotated[
        str,
        typer.Argument(help="gsm8k, dapo-math-17k, aime-2024, aime-2025, or custom for data of your own."),
    ],
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder to make; new, empty or with the same data.")
    ],
    train: Annotated[
        list[Path] | None,
        typer.Option(
            "--train",
            metavar="FILE",
            help="Source of training prompts; may be given again. With --repo: a path there.",
        ),
    ] = None,
    val: Annotated[
        list[Path] | None,
        typer.Option("--val", metavar="FILE", help="Source of validation prompts, likewise."),
    ] = None,
    hub: Annotated[
        str, typer.Option("--hub", help="huggingface or modelscope, where no files are named.")
    ] = "huggingface",
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="OWNER/NAME", help="Another data set of the hub.")
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision", help="Commit, tag or branch; default: the commit that this version knows."
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="A mirror of the hub.")
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping", metavar="FILE", help="custom: a mapping.yaml (docs/data.md).", dir_okay=False
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="COLUMN", help="custom: question or messages.")
    ] = None,
    truth: Annotated[
        str | None, typer.Option("--truth", metavar="COLUMN", help="custom: the right answer.")
    ] = None,
    extract: Annotated[
        str | None,
        typer.Option("--extract", help="custom: none, gsm8k (after ####) or boxed, from that column."),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--question", metavar="REGEX", help="custom: its one group is the question in the text."
        ),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message.")] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="Put before the question.")
    ] = None,
    suffix: Annotated[
        str | None, typer.Option("--suffix", metavar="TEXT", help="Put after the question.")
    ] = None,
    data_source: Annotated[
        str | None, typer.Option("--data-source", metavar="NAME", help="What the reward function is told.")
    ] = None,
    ability: Annotated[str | None, typer.Option("--ability", metavar="NAME")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="COLUMN", help="Copy into extra_info; may be given again."),
    ] = None,
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Keep rows whose prompt was there before.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows that cannot be mapped, and count them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make train.parquet, val.parquet and prepared.json from local files or a hub."""
    from verl_musa.data.prepare import Options
    from verl_musa.data.prepare import prepare as run

    given = {
        "prompt": prompt, "ground_truth": truth, "extract": extract, "question": question, "system": system, "prefix": prefix,
        "suffix": suffix, "data_source": data_source, "ability": ability, "keep": keep,
    }  # fmt: skip
    mappings = _mappings(name, mapping, {key: value for key, value in given.items() if value is not None})
    sources = {split: found for split, found in (("train", train), ("val", val)) if found}
    rest: dict[str, Any] = {
        "name": name, "mappings": mappings, "out": out, "keep_duplicates": keep_duplicates, "skip_bad": skip_bad,
    }  # fmt: skip
    found = _sources(name, sources, _Hub(hub, repo, revision, endpoint))
    options = Options.fetched(found, **rest) if found is not None else Options(sources=sources, **rest)
    with _bar() as bar:
        tasks: dict[str, Any] = {}

        def progress(split: str, rows: int, share: float) -> None:
            if split not in tasks:
                tasks[split] = bar.add_task(split, total=1.0, rows=0)
            bar.update(tasks[split], completed=share, rows=rows)

        made = run(options, progress)
    if as_json:
        typer.echo(json.dumps(made, indent=2, ensure_ascii=False))
        return
    _say_what_was_made(made, out)


def _mappings(name: str, file: Path | None, given: dict[str, Any]) -> Sequence[Mapping]:
    """The mappings of a known data set with what the options change, or the one of the options."""
    from pydantic import ValidationError

    from verl_musa.data.prepare_mapping import Mapping, load_mapping, mapping_error
    from verl_musa.data.sources import SOURCES
    from verl_musa.errors import DataError

    if name in SOURCES:
        if file is not None:
            raise DataError(
                "--mapping belongs to custom data",
                found=f"data prepare {name}",
                fix="use `data prepare custom`",
            )
        base: Sequence[Mapping | None] = SOURCES[name].mappings
    elif name == CUSTOM:
        base = [load_mapping(file) if file is not None else None]
    else:
        raise DataError("no such data set", found=name, expected=", ".join([*SOURCES, CUSTOM]))
    try:
        return [
            Mapping.model_validate({**(one.model_dump(by_alias=True) if one else {}), **given})
            for one in base
        ]
    except ValidationError as error:
        raise mapping_error(error, str(file) if file else "the options") from error


@dataclass(frozen=True)
class _Hub:
    """What the options say about a hub."""

    hub: str
    repo: str | None
    revision: str | None
    endpoint: str | None


def _sources(name: str, files: dict[str, list[Path]], asked: _Hub) -> dict[str, list[Fetched]] | None:
    """The files of each split, fetched from a hub; None where the files that were named are local ones."""
    from verl_musa.data.prepare_hub import HUBS, Request, fetch
    from verl_musa.data.sources import SOURCES
    from verl_musa.errors import DataError

    if files and asked.repo is None:
        return None
    if asked.hub not in HUBS:
        raise DataError("no such hub", found=asked.hub, expected=" or ".join(HUBS))
    source = SOURCES.get(name)
    known = (source.huggingface if asked.hub == "huggingface" else source.modelscope) if source else None
    paths = {split: [path.as_posix() for path in found] for split, found in files.items()}
    if not paths and known is not None:
        paths = {split: list(found) for split, found in known.files.items()}
    repository = asked.repo or (known.name if known else None)
    if repository is None or not paths:
        raise DataError(
            "nothing says where the data is",
            found=f"no copy of {name} on {asked.hub} that this version knows, and no files",
            expected="--train or --val with local files, or --repo OWNER/NAME and paths there",
            fix="name one of them",
        )
    pinned = asked.revision or (known.revision if known and known.name == repository else None)
    return {
        split: fetch(
            Request(asked.hub, repository, pinned, found, asked.endpoint),
            lambda line: typer.echo(line, err=True),
        )
        for split, found in paths.items()
    }


def _say_what_was_made(made: dict[str, Any], out: Path) -> None:
    from verl_musa.data.sources import SOURCES

    known = SOURCES[made["name"]].rows if made["name"] in SOURCES else {}
    for split, facts in made["splits"].items():
        left = []
        if facts["duplicates_dropped"]:
            left.append(f"{facts['duplicates_dropped']:,} duplicates dropped")
        if facts["dropped_with_another_answer"]:
            left.append(
                f"{facts['dropped_with_another_answer']:,} of them with ANOTHER answer than the first"
            )
        if facts["bad_rows_skipped"]:
            left.append(
                f"{facts['bad_rows_skipped']:,} unusable rows left out, the first: {facts['first_bad_rows'][0]}"
            )
        if facts["rows"] != known.get(split, facts["rows"]):
            left.append(f"the whole data set has {known[split]:,}")
        typer.echo(
            f"{out / facts['file']} ({split}): {facts['rows']:,} rows" + "".join(f"; {part}" for part in left)
        )
    typer.echo(f"sources, hashes and mapping: {out / 'prepared.json'}")
    named = [
        f"{'--val ' if split == 'val' else ''}{out / facts['file']}"
        for split, facts in made["splits"].items()
    ]
    typer.echo(f"check it with: verl-musa data check {' '.join(named)} --recipe NAME")


@app.command("check")
def check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of training prompts; without any, those of --recipe.")
    ] = None,
    *,
    val: Annotated[
        list[Path] | None,
        typer.Option("--val", metavar="FILE", help="Files of validation prompts; may be given again."),
    ] = None,
    recipe: RecipeOption = None,
    tokenizer: Tokenizer = None,
    max_prompt_length: Annotated[
        int | None,
        typer.Option("--max-prompt-length", metavar="N", min=1, help="Tokens, instead of the recipe's."),
    ] = None,
    reward: Annotated[
        bool,
        typer.Option(
            "--reward/--no-reward", help="Ask the recipe's reward function about every ground truth."
        ),
    ] = True,
    variants: Variants = None,
    sets: Sets = None,
    site: Site = None,
    as_json: AsJson = False,
) -> None:
    """Check the columns and every row of prompt files; docs/data.md lists the checks.

    Exit code: 0 when nothing failed (warnings are shown), 2 when a check failed, 3 when nothing failed but something
    could not be looked at, such as lengths without a tokenizer.
    """
    from verl_musa.checks import exit_code, render, to_json
    from verl_musa.data.check import check_data
    from verl_musa.data.check_scan import DataFiles, of_recipe
    from verl_musa.errors import DataError

    if not files and not val and recipe is None:
        raise DataError("nothing to check", expected="files, or --recipe NAME", fix="name one of them")
    if recipe is not None:
        subject = of_recipe(_resolved(recipe, variants, sets, site), files or (), val or ())
    else:
        subject = DataFiles(train=files or [], val=val or [])
    if tokenizer is not None:
        subject.tokenizer = tokenizer
    if max_prompt_length is not None:
        subject.max_prompt_length = max_prompt_length
    if not reward:
        subject.reward = None
    with _bar() as bar:
        task = bar.add_task("rows", total=None, rows=0)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, rows=done)

        subject.progress = progress
        results, rows = check_data(subject)
    if as_json:
        typer.echo(json.dumps({**to_json(results), "rows": rows}, indent=2, ensure_ascii=False))
    else:
        render(results, Console())
    raise typer.Exit(exit_code(results))


@app.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A prompt file, or any parquet, jsonl, json or csv file.")],
    *,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=0, help="Rows to print.")] = 3,
    recipe: RecipeOption = None,
    tokenizer: Tokenizer = None,
    variants: Variants = None,
    sets: Sets = None,
    site: Site = None,
    as_json: AsJson = False,
) -> None:
    """Show the columns, counts and lengths of a file, and a few rows as the model reads them."""
    from verl_musa.data.check_scan import DataFiles, of_recipe
    from verl_musa.data.show import QUANTILES
    from verl_musa.data.show import show as look

    known = of_recipe(_resolved(recipe, variants, sets, site)) if recipe else DataFiles(train=[file])
    found = look(
        file,
        rows=rows,
        prompt_key=known.prompt_key,
        source_key=known.source_key,
        lengths=_lengths(tokenizer or known.tokenizer, known.template, known.chat_template),
    )
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2, ensure_ascii=False, default=str))
        return
    for column, kind in found.columns.items():
        typer.echo(f"{column}: {kind}")
    sources = ", ".join(f"{count:,} {name}" for name, count in found.sources.most_common(10))
    typer.echo(f"{found.rows:,} rows; data sources: {sources or 'none'}")
    for what, values in (("characters", found.characters), ("tokens after the chat template", found.tokens)):
        if values:
            spread = ", ".join(
                f"{share:.0%} {value:,}" for share, value in zip(QUANTILES, values, strict=True)
            )
            typer.echo(f"{what} of a prompt, quantiles: {spread}")
    for index, row in enumerate(found.first):
        typer.echo(f"\n--- row {index}")
        typer.echo(json.dumps(row, indent=2, ensure_ascii=False, default=str))
        if index < len(found.rendered):
            typer.echo(f"as the model reads it:\n{found.rendered[index]}")


def _lengths(folder: Path | None, template: dict[str, Any], chat_template: str | None) -> Lengths | None:
    from verl_musa.data.check_lengths import Lengths, load_tokenizer

    if folder is None:
        return None
    tokenizer = load_tokenizer(folder)
    if chat_template:
        tokenizer.chat_template = chat_template
    return Lengths(tokenizer, None, template)


def _resolved(name: str, variants: list[str] | None, sets: list[str] | None, site: Path | None) -> Resolved:
    from verl_musa.recipe import ensure_assets, load_recipe, load_site, resolve

    recipe = load_recipe(name, variants=variants or ())
    found = resolve(
        recipe, run_dir=Path("runs", recipe.name, "RUN-ID"), site=load_site(site), sets=sets or ()
    )
    if recipe.assets is not None:
        ensure_assets(recipe, progress=lambda line: typer.echo(line, err=True))
    return found


@contextmanager
def _bar() -> Iterator[Bar]:
    """A bar with rows, share and time left; nothing where stderr is no terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeRemainingColumn(),
    )
    with Progress("{task.description}", *columns, console=console, disable=not console.is_terminal) as bar:
        yield bar
