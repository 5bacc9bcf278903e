"""Make the one virtual environment that every heavy nox session shares, layer by layer.

A layer is a folder of ours (installed editable) or a requirements file (a complete, exact closure, so pip never
resolves anything). Each layer leaves a stamp with the hash of what it was made from, and is redone only when that
changes. Run by nox with any Python of the right version: standard library only. uv installs (seconds instead of minutes),
with pip's own index settings, which it does not read by itself. pip does it where uv cannot be had or fails, and where
extra indexes are set: pip takes the best file of all indexes, uv the one of the first index that has the version.

    python ci/stack.py train test          # prints the interpreter's path as its last line
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".nox" / "stack"
INSTALL_LIMIT_S = 3600
PROGRESS_EVERY_S = 20
UV = "uv==0.13.9"
PYTHON = (3, 11)


@dataclass(frozen=True)
class Layer:
    """What one layer installs.

    Attributes:
        summary: what the user reads while it installs.
        requirements: requirements files, relative to the checkout.
        packages: folders of this checkout, installed editable.
        aside: requirements that go into a folder of their own (``aside/LAYER`` of the environment): only processes that
            have it on their ``PYTHONPATH`` see them.
        needs: layers that must be there first.
    """

    summary: str
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


LAYERS = {
    "train": Layer(
        "torch, verl, Ray, transformers and the simulated device (about 2 GB)",
        requirements=("images/sim/requirements-train.txt",),
        packages=(".", "ci/musa_sim"),
    ),
    "rollout": Layer(
        "SGLang and what it imports",
        requirements=("images/sim/requirements-rollout.txt",),
        packages=("ci/sgl_kernel_stub",),
        needs=("train",),
    ),
    # The extras of recipes. Aside, since SGLang takes torchada's mere presence for a Moore Threads host.
    "megatron": Layer(
        "Megatron-Core, its bridge and torchada, aside",
        aside=("images/sim/requirements-megatron.txt",),
        needs=("train",),
    ),
    # Aside, since it brings another openai than SGLang's, and transformers and verl look for a package of that name.
    "vllm": Layer(
        "vLLM's CPU build and what its server imports, aside",
        aside=("images/sim/requirements-vllm.txt",),
        needs=("train",),
    ),
    "test": Layer("pytest and its plugins", requirements=("ci/requirements-test.txt",), needs=("train",)),
}


def in_order(names: Sequence[str]) -> list[str]:
    """Return ``names`` with what they need, each once, needs first."""
    ordered: list[str] = []
    for name in names:
        for step in (*in_order(LAYERS[name].needs), name):
            if step not in ordered:
                ordered.append(step)
    return ordered


def fingerprint(layer: Layer) -> str:
    """Hash everything that decides a layer's content."""
    digest = hashlib.sha256(sys.version.encode())
    for file in (*layer.requirements, *layer.aside):
        digest.update((ROOT / file).read_bytes())
    for folder in layer.packages:
        digest.update((ROOT / folder / "pyproject.toml").read_bytes())
    return digest.hexdigest()


def count(requirements: Sequence[str]) -> int:
    """Return how many packages the requirements files pin."""
    lines = [line for name in requirements for line in (ROOT / name).read_text().splitlines()]
    return sum(1 for line in lines if line.strip() and not line.lstrip().startswith(("#", "-")))


def run_logged(command: Sequence[str], log: Path, what: str, env: dict[str, str] | None = None) -> None:
    """Run ``command`` with its output in ``log``, saying every few seconds that it is alive.

    Raises:
        SystemExit: the command failed or ran past ``INSTALL_LIMIT_S``; the log's last lines are shown.
    """
    started = time.monotonic()
    with log.open("ab") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, env=env)
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=PROGRESS_EVERY_S)
                except subprocess.TimeoutExpired:
                    elapsed = time.monotonic() - started
                    print(f"   … {what}: {elapsed:.0f} s so far", flush=True)
                    if elapsed > INSTALL_LIMIT_S:
                        raise SystemExit(f"{what}: gave up after {INSTALL_LIMIT_S} s; see {log}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SystemExit(f"{what} failed (exit {process.returncode}); the end of {log}:\n{tail}")


def pip_settings(listed: str) -> dict[str, list[str]]:
    """Return pip's settings from the output of ``pip config list``: name -> values, the most specific source wins."""
    strength = {"global": 0, "user": 1, "site": 2, "install": 3, ":env:": 4}
    found: dict[str, tuple[int, list[str]]] = {}
    for line in listed.splitlines():
        key, separator, text = line.partition("=")
        source, _, name = key.rpartition(".")
        if separator and strength.get(source, -1) >= found.get(name, (-1, []))[0]:
            found[name] = (strength.get(source, -1), str(ast.literal_eval(text)).split())
    return {name: values for name, (_, values) in found.items()}


def uv_command(python: Path, settings: dict[str, list[str]]) -> list[str]:
    """Return uv's install command with pip's index settings."""
    names = {"index-url": "--default-index", "find-links": "--find-links"}
    given = [
        part for name, option in names.items() for value in settings.get(name, ()) for part in (option, value)
    ]
    return [str(python.with_name("uv")), "pip", "install", "--python", str(python), "--no-deps", *given]


class Installer:
    """Installs into the environment, with uv where it can."""

    def __init__(self, python: Path, log: Path) -> None:
        self._pip = [
            str(python),
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--no-compile",
            "--disable-pip-version-check",
        ]
        self._log = log
        self._uv: list[str] = []
        asked = subprocess.run(
            [str(python), "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        settings = pip_settings(asked.stdout)
        self._certificates = {"SSL_CERT_FILE": settings["cert"][0]} if settings.get("cert") else {}
        if settings.get("extra-index-url"):
            return
        try:
            run_logged([*self._pip, UV], log, "installing uv")
        except SystemExit:
            print("   uv cannot be had here: pip installs, which takes some minutes more", flush=True)
        else:
            self._uv = uv_command(python, settings)

    def install(self, arguments: Sequence[str], what: str) -> None:
        """Install ``arguments`` (requirements, folders, options that uv and pip share).

        Raises:
            SystemExit: neither uv nor pip could.
        """
        if self._uv:
            try:
                return run_logged(
                    [*self._uv, *arguments], self._log, what, {**self._certificates, **os.environ}
                )
            except SystemExit as error:
                print(f"   {str(error).splitlines()[0]}: pip tries again", flush=True)
        return run_logged([*self._pip, *arguments], self._log, what)


def make_environment(python: Path) -> None:
    """Create the virtual environment when it is missing or belongs to another Python version."""
    config = ENVIRONMENT / "pyvenv.cfg"
    version = ".".join(map(str, sys.version_info[:3]))
    if python.exists() and config.exists() and version in config.read_text():
        return
    print(f"-> new environment {ENVIRONMENT.relative_to(ROOT)} (Python {version})", flush=True)
    command = [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)]
    subprocess.run(command, check=True, timeout=300)


def install(name: str, python: Path) -> None:
    """Install one layer unless its stamp says that it is there already."""
    layer = LAYERS[name]
    stamp = ENVIRONMENT / f"layer-{name}.sha256"
    wanted = fingerprint(layer)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    log = ENVIRONMENT / f"layer-{name}.log"
    log.unlink(missing_ok=True)
    stamp.unlink(missing_ok=True)
    started = time.monotonic()
    print(
        f"-> {name}: {layer.summary}; {count((*layer.requirements, *layer.aside))} pinned packages, log {log}",
        flush=True,
    )
    installer = Installer(python, log)
    for file in layer.requirements:
        installer.install(["-r", file], f"{name}: installing")
    for folder in layer.packages:
        installer.install(["-e", f"./{folder}"], f"{name}: installing {folder}")
    for file in layer.aside:
        target = ["--target", str(ENVIRONMENT / "aside" / name), "--upgrade"]
        installer.install([*target, "-r", file], f"{name}: putting {file} aside")
    # Every Ray worker and SGLang process imports from these files: compiled once, on all cores.
    libraries = sysconfig.get_path("purelib", vars={"base": str(ENVIRONMENT), "platbase": str(ENVIRONMENT)})
    compile_all = ["-m", "compileall", "-q", "-j", "0", libraries]
    # Some wheels carry templates or Python 2 files that do not compile; only a crash of compileall matters.
    subprocess.run([str(python), *compile_all], check=False, timeout=INSTALL_LIMIT_S, capture_output=True)
    stamp.write_text(wanted)
    print(f"   {name}: done in {time.monotonic() - started:.0f} s", flush=True)


def check_python(version: tuple[int, ...]) -> None:
    """Refuse a Python for which the pins were not made.

    Raises:
        SystemExit: another minor version than ``PYTHON``.
    """
    if version[:2] != PYTHON:
        found, wanted = (".".join(map(str, numbers[:2])) for numbers in (version, PYTHON))
        raise SystemExit(
            f"found Python {found}; expected {wanted}, which the pinned requirements are for\n"
            f"  next step: python{wanted} -m pip install nox && python{wanted} -m nox …"
        )


def main() -> None:
    """Install the layers named on the command line."""
    parser = argparse.ArgumentParser(description="Make the shared environment of the heavy sessions.")
    parser.add_argument("layers", nargs="+", choices=sorted(LAYERS))
    names = in_order(parser.parse_args().layers)
    check_python(tuple(sys.version_info[:3]))
    python = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    make_environment(python)
    for name in names:
        install(name, python)


if __name__ == "__main__":
    main()
