"""The command line: thin verbs that parse, call one function and print."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from verl_musa import __version__
from verl_musa.errors import VerlMusaError

app = typer.Typer(
    name="verl-musa",
    help="Reproducible veRL recipes for Moore Threads MUSA GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show tracebacks of errors too.")] = False,
    version: Annotated[  # noqa: ARG001  (typer calls the callback)
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = {"verbose": verbose}


def _register_verbs() -> None:
    from verl_musa.cli import (
        cluster,
        convert,
        data,
        env,
        explain,
        gate,
        image,
        lint,
        patches,
        preflight,
        recipe,
        run,
        runs,
        site,
        triage,
    )

    app.add_typer(recipe.app, name="recipe")
    app.add_typer(patches.app, name="patches")
    app.add_typer(convert.app, name="convert")
    app.add_typer(data.app, name="data")
    app.add_typer(image.app, name="image")
    app.add_typer(site.app, name="site")
    app.add_typer(cluster.app, name="cluster")
    app.command(name="run")(run.run)
    app.command(name="follow")(runs.follow)
    app.command(name="status")(runs.status)
    app.command(name="stop")(runs.stop)
    app.command(name="resume")(runs.resume)
    app.command(name="logs")(runs.logs)
    app.command(name="list")(runs.list_)
    app.command(name="explain")(explain.explain)
    app.command(name="gate")(gate.gate)
    app.command(name="env")(env.env)
    app.command(name="lint")(lint.lint)
    app.command(name="preflight")(preflight.preflight)
    app.command(name="triage")(triage.triage)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code (0 ok, 1 job failed, 2 bad input, 130 interrupted)."""
    arguments = sys.argv[1:] if argv is None else argv
    verbose = bool({"-v", "--verbose"} & set(arguments))
    try:
        result = app(arguments, standalone_mode=False)
    except VerlMusaError as error:
        if verbose:
            Console(stderr=True).print_exception()
        sys.stderr.write(f"verl-musa: error: {error}\n")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("verl-musa: interrupted\n")
        return INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own usage errors carry it
            raise
        if error.format_message():  # empty where the help was printed because no argument was given
            sys.stderr.write(f"verl-musa: error: {error.format_message()}\n")
        return 2
    return result if isinstance(result, int) else 0


_register_verbs()
