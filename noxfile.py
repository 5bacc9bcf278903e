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
    python = use_stack(session, "train", "megatron", "test")
    run_pytest(session, python, "-m", "not integration", "-n", "logical", "--dist", "worksteal")


@nox.session(venv_backend="none")
def integration(session: nox.Session) -> None:
    """Run whole jobs on this machine: real verl, Ray and SGLang on the simulated device."""
    python = use_stack(session, "train", "rollout", "megatron", "test")
    run_pytest(session, python, "-m", "integration and not matrix and not nightly", "-v")


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """Run the whole jobs for which CI has no time: Megatron, PPO, vLLM, placements, the gate's planted bugs."""
    python = use_stack(session, "train", "rollout", "megatron", "vllm", "test")
    run_pytest(session, python, "-m", "nightly", "-v")


@nox.session(venv_backend="none")
def matrix(session: nox.Session) -> None:
    """Run the cells of the support matrix (`-- -k vllm` for some), and write docs/matrix.md from their results."""
    python = use_stack(session, "train", "rollout", "megatron", "vllm", "test")
    session.env["VERL_MUSA_KEEP_MATRIX"] = "1"
    try:
        run_pytest(session, python, "-m", "matrix", "-v")
    finally:
        session.run(python, "ci/matrix.py", external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, import rules, shell scripts, and what breaks a launch elsewhere."""
    session.install("-r", "ci/requirements-lint.txt")
    session.install("--no-deps", "-e", ".")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "verl_musa", "noxfile.py", "ci", "patches", "tests")
    # One by one: every recipe has a reward.py, and no two modules may have the same name.
    for recipe in sorted(ROOT.glob("recipes/*/")):
        session.run("mypy", str(recipe.relative_to(ROOT)))
    session.run("lint-imports")
    scripts = [*ROOT.glob("ci/**/*.sh"), *ROOT.glob("images/**/*.sh")]
    session.run("shellcheck", ".ci/run", *(str(path.relative_to(ROOT)) for path in sorted(scripts)))
    # Whole files: the shared stages alone refer to stages of the file that they are put behind.
    folder = session.create_tmp()
    for image in sorted(ROOT.glob("images/*/pins.toml")):
        whole = Path(folder, f"{image.parent.name}.Dockerfile")
        parts = [image.with_name("Dockerfile"), ROOT / "images" / "common" / "Dockerfile"]
        whole.write_text("".join(part.read_text(encoding="utf-8") for part in parts), encoding="utf-8")
        session.run("hadolint", "--config", "images/hadolint.yaml", str(whole))
    # Recipes are left to `verl-musa recipe check`, which needs veRL; the tests run it.
    session.run("verl-musa", "lint", "--no-recipes", ".")


@nox.session(venv_backend="none")
def run(session: nox.Session) -> None:
    """Run a recipe: `nox -s run -- qwen3-tiny-dense [--variant V] [--set key=value] [--resume RUN] [--dry-run]`."""
    use_stack(session, "train", "rollout")
    verl_musa = str(STACK_BIN / "verl-musa")
    extras = session.run(verl_musa, "recipe", "extras", *session.posargs, external=True, silent=True) or ""
    if extras.split():
        use_stack(session, *extras.split())
    session.run(verl_musa, "run", *session.posargs, external=True)


@nox.session(venv_backend="none")
def convert(session: nox.Session) -> None:
    """Convert the weights that a recipe declares: `nox -s convert -- qwen3-tiny-moe [--variant V] [--dry-run]`."""
    use_stack(session, "train")
    session.run(str(STACK_BIN / "verl-musa"), "convert", "recipe", *session.posargs, external=True)


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Lock the images' requirements by hash: `nox -s lock [-- IMAGE ...]`."""
    python = use_stack(session, "train")
    # Not there where pip makes the environment: ci/stack.py.
    session.run(python, "-m", "pip", "install", "--quiet", "--no-deps", "uv==0.13.9", external=True)
    session.run(str(STACK_BIN / "verl-musa"), "image", "lock", *session.posargs, external=True)


@nox.session(venv_backend="none")
def build_image(session: nox.Session) -> None:
    """Build an image and verify it: `nox -s build_image [-- IMAGE] [--base REF] [--no-cache]`; docs/images.md."""
    use_stack(session, "train")
    session.run(str(STACK_BIN / "verl-musa"), "image", "build", *session.posargs, external=True)


@nox.session(venv_backend="none")
def build_sim(session: nox.Session) -> None:
    """Build the simulated device and print where it is cached."""
    use_stack(session, "train")
