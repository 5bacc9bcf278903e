"""Which files are read, and as what; what is left out is said."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from verl_musa.errors import LintError
from verl_musa.lint.model import Kind
from verl_musa.lint.words import word_set

MAX_BYTES: Final = 4 * 2**20
"""A larger file is data."""

SKIPPED_FOLDERS: Final = word_set(
    ".git .hg .svn .nox .tox .venv __pycache__ .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .ipynb_checkpoints"
    " node_modules .eggs"
)
RECIPE_FILE: Final = "recipe.yaml"
_SITE_FILE: Final = re.compile(r"site(?:\.[\w-]+)?\.ya?ml")
_SHEBANG: Final = re.compile(rb"#!\s*/\S*?(?:/env\s+(?:-S\s+)?)?(bash|sh|dash|python3?)\b")
_DOCKERFILE: Final = re.compile(
    r"(?:Dockerfile|Containerfile)(?:[._-].+)?|.+\.(?:dockerfile|containerfile)", re.IGNORECASE
)
_NOT_DOCKERFILE: Final = re.compile(r".*\.(?:py|md|ya?ml|json|txt|dockerignore)$")


@dataclass(frozen=True)
class Target:
    """A file to read: where it lies, how it is shown, and what it is."""

    path: Path
    shown: str
    kind: Kind


@dataclass
class Selection:
    """What a lint reads.

    Attributes:
        targets: the files, in order.
        recipes: folders of recipes among them.
        notes: what was left out, and why.
    """

    targets: list[Target] = field(default_factory=list)
    recipes: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, path: Path, shown: str, *, named: bool = False) -> None:
        """Take a file, where it is of a kind that is read and has a sensible size."""
        kind = kind_of(path)
        if kind is None:
            if named:
                self.notes.append(f"{shown}: left out: neither Python, shell, YAML nor a Dockerfile")
            return
        size = path.stat().st_size
        if size > MAX_BYTES:
            self.notes.append(
                f"{shown}: left out: {size:,} bytes, more than the {MAX_BYTES:,} of a file written by hand"
            )
            return
        self.targets.append(Target(path, shown, kind))


def kind_of(path: Path) -> Kind | None:
    """What a file is read as, by its name and, where it has no suffix, by its first line; None where it is not read."""
    suffix = path.suffix.lower()
    if suffix in (".py", ".pyi"):
        return Kind.PYTHON
    if suffix in (".sh", ".bash"):
        return Kind.SHELL
    if suffix in (".yaml", ".yml"):
        return Kind.YAML
    if _DOCKERFILE.fullmatch(path.name) and not _NOT_DOCKERFILE.fullmatch(path.name):
        return Kind.DOCKERFILE
    return None if suffix else _by_first_line(path)


def _by_first_line(path: Path) -> Kind | None:
    try:
        with path.open("rb") as stream:
            found = _SHEBANG.match(stream.readline(200))
    except OSError:
        return None
    if found is None:
        return None
    return Kind.PYTHON if found[1].startswith(b"python") else Kind.SHELL


def holds_machine_facts(path: Path) -> bool:
    """Whether the file is a ``site.yaml``: the one place where paths and hosts of a machine belong."""
    return bool(_SITE_FILE.fullmatch(path.name))


def select(paths: Sequence[Path]) -> Selection:
    """The files under ``paths``. A file that is named itself is read even where the configuration excludes it.

    Raises:
        LintError: a path does not exist, or the configuration has a mistake.
    """
    chosen = Selection()
    for path in paths:
        if path.is_file():
            chosen.add(path, _shown(path), named=True)
        elif path.is_dir():
            _walk(path, chosen)
        else:
            raise LintError(
                "no such file or folder",
                where=str(path),
                fix="name a file, a folder or --installed DISTRIBUTION",
            )
    return chosen


def _shown(path: Path) -> str:
    absolute, here = path.resolve(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def _walk(root: Path, chosen: Selection) -> None:
    base, patterns = excluded(root)
    found: list[Path] = []
    for folder, inner, names in os.walk(root):
        here = Path(folder)
        inner[:] = sorted(
            name
            for name in inner
            if not _left_out(here / name, base, patterns) and not _is_cache(here / name)
        )
        found += [here / name for name in sorted(names) if not _left_out(here / name, base, patterns)]
        if RECIPE_FILE in names:
            chosen.recipes.append(here)
    for path in found:
        if path.is_file() and not path.is_symlink():
            chosen.add(path, _shown(path))


def _is_cache(folder: Path) -> bool:
    return (
        folder.name in SKIPPED_FOLDERS
        or folder.name.endswith(".egg-info")
        or (folder / "pyvenv.cfg").is_file()
    )


def _left_out(path: Path, base: Path, patterns: Iterable[str]) -> bool:
    absolute = path.resolve()
    if not absolute.is_relative_to(base):
        return False
    inside = absolute.relative_to(base).as_posix()
    return any(fnmatch.fnmatchcase(inside, pattern) for pattern in patterns)


def excluded(root: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder and the ``exclude`` patterns of the nearest ``pyproject.toml`` upwards that has ``[tool.verl-musa.lint]``.

    Raises:
        LintError: that table has a mistake.
    """
    start = root.resolve()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            table = (
                tomllib.loads(file.read_text(encoding="utf-8"))
                .get("tool", {})
                .get("verl-musa", {})
                .get("lint")
            )
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise LintError(
                "cannot read the lint's configuration", where=str(file), found=str(error)
            ) from error
        if table is not None:
            return folder, _patterns(table, file)
    return start, ()


def _patterns(table: object, file: Path) -> tuple[str, ...]:
    patterns = table.get("exclude", []) if isinstance(table, dict) else None
    unknown = sorted(set(table) - {"exclude"}) if isinstance(table, dict) else []
    if unknown or not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise LintError(
            "[tool.verl-musa.lint] has a mistake",
            where=str(file),
            found=", ".join(unknown) or repr(table),
            expected='exclude = ["pattern", ...], relative to this file, and nothing else',
        )
    return tuple(patterns)


def select_installed(name: str) -> Selection:
    """The files of an installed distribution, found by its metadata; nothing of it is imported.

    Raises:
        LintError: it is not installed, its metadata lists no files, or it is a link to a checkout.
    """
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise LintError(
            f"{name} is not installed here",
            expected="the name of an installed distribution",
            fix="see `pip list`",
        ) from error
    direct = json.loads(distribution.read_text("direct_url.json") or "{}")
    if direct.get("dir_info", {}).get("editable"):
        folder = str(direct.get("url", "")).removeprefix("file://")
        raise LintError(
            f"{name} is installed as a link to a checkout", found=folder, fix=f"verl-musa lint {folder}"
        )
    if distribution.files is None:
        raise LintError(f"the metadata of {name} lists no files", fix="install it again with pip")
    chosen = Selection(
        notes=[f"{distribution.name} {distribution.version}, files under {distribution.locate_file('')}"]
    )
    for file in sorted(_existing(distribution.files), key=str):
        chosen.add(Path(str(file.locate())), str(file))
    return chosen


def _existing(files: Iterable[importlib.metadata.PackagePath]) -> Iterator[importlib.metadata.PackagePath]:
    for file in files:
        if "__pycache__" not in file.parts and Path(str(file.locate())).is_file():
            yield file
