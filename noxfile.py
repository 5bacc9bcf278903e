"""Typed nox sessions. Each is thin: it calls the `verl-musa` command line or a test runner."""

from __future__ import annotations

import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
STACK_BIN = ROOT / ".nox" / "stack" / "bin"


def use_stack(session: nox.Session, *layers: str) -> str:
    """Make the shared heavy environment and return its Python."""
    session.run(sys.executable, "ci/stack.py", *layers, external=True)
    python = str(STACK_BIN / "python")
    session.run(python, "-m", "torch_musa.build", external=True)
    return python


def run_pytest(session: nox.Session, python: str, *arguments: str) -> None:
    """Run pytest from the shared environment."""
    session.run(python, "-m", "pytest", *arguments, *session.posargs, external=True)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the unit tests, the simulated device's included, on all cores."""
    python = use_stack(session, "train", "test")
    run_pytest(session, python, "-m", "not integration", "-n", "logical", "--dist", "worksteal")


@nox.session(venv_backend="none")
def integration(session: nox.Session) -> None:
    """Run whole jobs on this machine: real verl, Ray and SGLang on the simulated device."""
    python = use_stack(session, "train", "rollout", "test")
    run_pytest(session, python, "-m", "integration", "-v")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, import rules and shell scripts."""
    session.install("-r", "ci/requirements-lint.txt")
    session.install("--no-deps", "-e", ".")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "verl_musa", "noxfile.py", "ci", "patches", "recipes", "tests")
    session.run("lint-imports")
    scripts = [".ci/run", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("ci/**/*.sh")))]
    session.run("shellcheck", *scripts)


@nox.session(venv_backend="none")
def run(session: nox.Session) -> None:
    """Run a recipe: `nox -s run -- qwen3-tiny-dense [--set key=value] [--resume RUN] [--dry-run]`."""
    use_stack(session, "train", "rollout")
    session.run(str(STACK_BIN / "verl-musa"), "run", *session.posargs, external=True)


@nox.session(venv_backend="none")
def build_sim(session: nox.Session) -> None:
    """Build the simulated device and print where it is cached."""
    use_stack(session, "train")
