"""Versions of the hardware stack and of Python packages, read without importing any of them."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
from pathlib import Path

import verl_musa
from verl_musa.env.report import Devices, Fact

PACKAGES = (
    "torch",
    "torchada",
    "verl",
    "megatron-core",
    "mbridge",
    "sglang",
    "sgl-kernel",
    "ray",
    "transformers",
    "tokenizers",
    "tensordict",
    "TransferQueue",
    "numpy",
    "pyarrow",
    "hydra-core",
    "mthreads-ml-py",
)
SIMULATOR = "musa-sim"
DEFAULT_MUSA_HOME = "/usr/local/musa"
"""Where Moore Threads' SDK installs itself when MUSA_HOME is not set."""

_METADATA = "package metadata"
_NUMBER = re.compile(r"\d+(?:\.\d+){1,3}(?:[-.+][0-9A-Za-z]+)*")


def versions(devices: Devices) -> list[Fact]:
    """Every version, from the driver upwards."""
    home = Path(os.environ.get("MUSA_HOME") or DEFAULT_MUSA_HOME)
    return [
        Fact(name="verl-musa", value=verl_musa.__version__, source="this package"),
        Fact(name="python", value=platform.python_version(), source="this interpreter"),
        _driver(devices),
        sdk(home),
        mccl(home),
        torch_musa(),
        *(package(name) for name in PACKAGES),
    ]


def package(name: str) -> Fact:
    """Version of an installed package."""
    try:
        return Fact(name=name, value=importlib.metadata.version(name), source=_METADATA)
    except importlib.metadata.PackageNotFoundError:
        return Fact(name=name, value=None, source=_METADATA, why="not installed", absent=True)


def _driver(devices: Devices) -> Fact:
    if devices.driver:
        return Fact(name="driver", value=devices.driver, source=devices.source)
    why = "; ".join(devices.notes) if devices.source == "none" else f"{devices.source} does not name it"
    return Fact(name="driver", value=None, source="mthreads-ml-py, mthreads-gmi", why=why)


def sdk(home: Path) -> Fact:
    """Version of the MUSA SDK by the version files in ``home``; the layout differs between releases."""
    if not home.is_dir():
        return Fact(
            name="musa-sdk",
            value=None,
            source=str(home),
            why="no such folder; set MUSA_HOME if it is elsewhere",
        )
    files = sorted(
        file for file in home.glob("*version*") if file.is_file() and file.suffix in {"", ".json", ".txt"}
    )
    for file in files:
        try:
            found = _version_in(
                file.read_text(encoding="utf-8", errors="replace"), json_file=file.suffix == ".json"
            )
        except OSError:
            found = None
        if found:
            return Fact(name="musa-sdk", value=found, source=str(file))
    return Fact(
        name="musa-sdk",
        value=None,
        source=str(home),
        why="no version in " + (", ".join(file.name for file in files) or "it: no file named *version*"),
    )


def _version_in(text: str, *, json_file: bool) -> str | None:
    """The version that ``text`` states: that of an entry named after the toolkit, else the first one."""
    if json_file:
        try:
            value = json.loads(text)
        except ValueError:
            return None
        entries = value.items() if isinstance(value, dict) else ()
        ordered = sorted(
            entries, key=lambda entry: 0 if "toolkit" in entry[0].lower() or entry[0] == "version" else 1
        )
        text = " ".join(json.dumps(item) for _, item in ordered)
    match = _NUMBER.search(text)
    return match.group() if match else None


def mccl(home: Path) -> Fact:
    """Version of MCCL: by its header, else by the file name of its library."""
    header = home / "include" / "mccl.h"
    try:
        parts = dict(
            re.findall(r"#define\s+MCCL_(MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text(errors="replace"))
        )
    except OSError:
        parts = {}
    if len(parts) == 3:  # noqa: PLR2004  (major, minor, patch)
        return Fact(
            name="mccl", value=f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCH']}", source=str(header)
        )
    libraries = sorted((home / "lib").glob("libmccl.so*"), key=lambda file: len(file.name), reverse=True)
    for library in libraries:
        match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", library.resolve().name)
        if match:
            return Fact(name="mccl", value=match.group(1), source=str(library))
    simulator = package(SIMULATOR)
    if simulator.value is not None:
        return Fact(
            name="mccl", value=f"simulated by {SIMULATOR} {simulator.value} (over gloo)", source=_METADATA
        )
    why = f"no mccl.h and no versioned libmccl.so under {home}"
    return Fact(name="mccl", value=None, source=str(home), why=why)


def torch_musa() -> Fact:
    """Whether ``torch_musa`` is the real one or the simulator, without running it."""
    simulator, real = package(SIMULATOR), package("torch_musa")
    if simulator.value and real.value:
        return Fact(
            name="torch_musa",
            value=None,
            source=_METADATA,
            why=f"both torch_musa {real.value} and the simulator {SIMULATOR} {simulator.value} are installed; remove one",
        )
    if simulator.value:
        return Fact(name="torch_musa", value=f"simulator ({SIMULATOR} {simulator.value})", source=_METADATA)
    if real.value:
        return Fact(name="torch_musa", value=real.value, source=_METADATA)
    return _torch_musa_on_path()


def _torch_musa_on_path() -> Fact:
    """``torch_musa`` without package metadata: read its source for the simulator's mark."""
    spec = importlib.util.find_spec("torch_musa")
    if spec is None:
        return Fact(name="torch_musa", value=None, source=_METADATA, why="not installed", absent=True)
    source = str(spec.origin)
    try:
        tree = ast.parse(Path(source).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return Fact(
            name="torch_musa", value=None, source=source, why="importable, but without metadata or source"
        )
    if any(_marks_simulator(node) for node in tree.body):
        return Fact(name="torch_musa", value="simulator (no package metadata)", source=source)
    return Fact(name="torch_musa", value=None, source=source, why="importable, but without package metadata")


def _marks_simulator(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        names, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        names, value = [node.target], node.value
    else:
        return False
    named = any(isinstance(name, ast.Name) and name.id == "__simulator__" for name in names)
    return named and isinstance(value, ast.Constant) and value.value is True
