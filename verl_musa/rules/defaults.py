"""Where in verl's own configuration tree a default is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

_CHOICE = re.compile(r"\$\{(\w+)\}")


def find_default(folder: Path, name: str, path: str, choices: dict[str, str] | None = None) -> str | None:
    """``file:line`` of the default of ``path`` in the tree below ``folder`` whose primary config is ``name``; None: not found.

    Follows Hydra's defaults lists; the last file that writes the key is the one whose value holds. ``choices`` replaces options of
    config groups, such as ``model_engine``.
    """
    found = None
    primary = folder / f"{name}.yaml"
    chosen = {**_overridden(primary), **(choices or {})}
    for file, package in _files(folder, primary, "", chosen):
        inner = (
            path
            if not package
            else path.removeprefix(f"{package}.")
            if path.startswith(f"{package}.")
            else None
        )
        line = None if inner is None else _lines(file).get(tuple(inner.split(".")))
        if line is not None:
            found = f"{file}:{line}"
    return found


def _files(root: Path, file: Path, package: str, choices: dict[str, str]) -> Iterator[tuple[Path, str]]:
    """(file, package) in the order in which Hydra merges them."""
    if not file.is_file():
        return
    own_placed = False
    for entry in _defaults(file):
        if entry == "_self_":
            own_placed = True
            yield file, package
            continue
        for group, option in _options(entry, choices):
            where, _, at = group.partition("@")
            inner = _join(package, at or _group_package(where))
            target = _target(root, file, where, option)
            yield from _files(root, target, inner, choices)
    if not own_placed:
        yield file, package


def _overridden(file: Path) -> dict[str, str]:
    """Options that the primary config overrides in the defaults lists below it."""
    entries = [entry for entry in _defaults(file) if isinstance(entry, dict)]
    pairs = [(str(group), str(option)) for entry in entries for group, option in entry.items()]
    return {
        group.removeprefix("override ").strip(): option
        for group, option in pairs
        if group.startswith("override ")
    }


def _options(entry: Any, choices: dict[str, str]) -> list[tuple[str, str]]:
    if isinstance(entry, str):
        return [("", entry)]
    found = []
    for group, option in entry.items():
        name = str(group).removeprefix("override ").strip()
        bare = name.rpartition("/")[2].partition("@")[0]
        chosen = (
            choices.setdefault(bare, str(option))
            if "@" not in name and "${" not in str(option)
            else str(option)
        )
        found.append((name, _CHOICE.sub(lambda match: choices.get(match.group(1), match.group()), chosen)))
    return found


def _group_package(group: str) -> str:
    """Package of a group without ``@``: its own name, but for verl's ``model_engine``, whose files say ``_global_``."""
    return "" if group in {"", "model_engine"} else group.rpartition("/")[2]


def _join(outer: str, inner: str) -> str:
    if inner in {"", "_here_"}:
        return outer
    return f"{outer}.{inner}" if outer else inner


def _target(root: Path, file: Path, group: str, option: str) -> Path:
    if not group:
        return file.parent / f"{option}.yaml"
    base = root if group.startswith("/") else file.parent
    beside = (base / group.lstrip("/") / f"{option}.yaml").resolve()
    return beside if beside.is_file() else (root / group.lstrip("./") / f"{option}.yaml").resolve()


@lru_cache(maxsize=64)
def _document(file: Path) -> yaml.Node | None:
    return yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)


def _defaults(file: Path) -> list[Any]:
    value = yaml.safe_load(file.read_text(encoding="utf-8"))
    return value.get("defaults", []) if isinstance(value, dict) else []


@lru_cache(maxsize=64)
def _lines(file: Path) -> dict[tuple[str, ...], int]:
    """Path of each key of ``file`` -> its line."""
    node, found = _document(file), {}

    def walk(inner: yaml.Node, path: tuple[str, ...]) -> None:
        if isinstance(inner, yaml.MappingNode):
            for key, value in inner.value:
                here = (*path, str(key.value))
                found[here] = key.start_mark.line + 1
                walk(value, here)

    if node is not None:
        walk(node, ())
    return found
