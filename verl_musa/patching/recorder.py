"""Write the fingerprints of a patch's targets into its file, after a person has compared the code."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from verl_musa.fileio import write_atomic
from verl_musa.patching.fingerprint import SourceModule
from verl_musa.patching.model import ABSENT, Patch, PatchError, split_target
from verl_musa.patching.sources import Source

Fingerprints = dict[str, dict[str, str]]


def record(patch: Patch, source: Source) -> Fingerprints:
    """Return the patch's fingerprints with those of ``source`` added.

    Raises:
        PatchError: the source is of another upstream than the patch's, or cannot be parsed.
    """
    if source.distribution != patch.distribution:
        raise PatchError(
            "the patch is for another upstream",
            where=patch.id,
            found=source.distribution,
            expected=patch.distribution,
        )
    merged: Fingerprints = {}
    for target, known in patch.fingerprints.items():
        merged[target] = {**known, source.version: _look_up(target, source)}
    return merged


def as_source(fingerprints: Mapping[str, Mapping[str, str]], names: Mapping[str, str], indent: str) -> str:
    """Return the dictionary as it stands in a patch file; targets that have a constant are named by it."""
    lines = ["{"]
    for target, versions in fingerprints.items():
        key = names.get(target, f'"{target}"')
        lines.append(f"{indent}    {key}: {{")
        lines += [f'{indent}        "{version}": "{value}",' for version, value in versions.items()]
        lines.append(f"{indent}    }},")
    return "\n".join([*lines, indent + "}"])


def write(path: Path, fingerprints: Mapping[str, Mapping[str, str]]) -> None:
    """Put the fingerprints in the place of the `fingerprints=` argument of the file's `Patch(...)`.

    Raises:
        PatchError: the file has no such argument.
    """
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    names = {
        node.value.value: node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    for call in ast.walk(tree):
        for keyword in call.keywords if isinstance(call, ast.Call) else []:
            if keyword.arg == "fingerprints":
                write_atomic(path, _replaced(text, keyword.value, fingerprints, names))
                return
    raise PatchError(
        "no `fingerprints=` argument", where=str(path), expected="PATCH = Patch(..., fingerprints={...})"
    )


def _replaced(
    text: str, value: ast.expr, fingerprints: Mapping[str, Mapping[str, str]], names: Mapping[str, str]
) -> str:
    lines = text.splitlines(keepends=True)
    first, last = value.lineno - 1, (value.end_lineno or value.lineno) - 1
    # Columns count UTF-8 bytes.
    before = lines[first].encode()[: value.col_offset].decode()
    after = lines[last].encode()[value.end_col_offset or 0 :].decode()
    indent = before[: len(before) - len(before.lstrip())]
    new = before + as_source(fingerprints, names, indent) + after
    return "".join([*lines[:first], new, *lines[last + 1 :]])


def _look_up(target: str, source: Source) -> str:
    module, qualname = split_target(target)
    read = source.read(module)
    if read is None:
        return ABSENT
    where, text = read
    try:
        return SourceModule(text, where).fingerprint(qualname)
    except SyntaxError as error:
        raise PatchError("upstream's source cannot be parsed", where=where, found=str(error)) from error
