from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from verl_musa import __version__, cli
from verl_musa.errors import JobFailedError, RecipeError


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def app(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in ("run", "env", "recipe", "patches"):
        assert verb in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecipeError("no such recipe", found="x", fix="look"), 2),
        (JobFailedError("a worker died"), 1),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
    ],
)
def test_errors_become_exit_codes_without_a_traceback(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert cli.main([]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_verbose_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, RecipeError("no such recipe"))
    assert cli.main(["-v"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "no such recipe" in shown


def test_our_own_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        cli.main([])


def test_an_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rnu"]) == 2
    assert "rnu" in capsys.readouterr().err


def test_start_up_imports_no_heavy_library() -> None:
    heavy = ("torch", "verl", "ray", "sglang", "transformers", "pyarrow", "hydra")
    script = f"import sys; from verl_musa.cli import main; main(['--version']); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
