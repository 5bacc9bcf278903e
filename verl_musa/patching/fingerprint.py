"""Fingerprints of source code that survive formatting, comments, docstrings and the Python version.

What is hashed is the syntax tree of every statement that binds the target's name in its scope, written out by us
rather than by ``ast.dump``, whose output differs between Python versions. Left out: positions, comments,
docstrings, type comments, string prefixes and expression contexts, and every field that is empty (Python 3.12 gave
functions an empty ``type_params``). Constant pieces of an f-string are merged. Names bound by ``for`` or ``with``
are not looked at. Of an import statement only the one imported name counts.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence

from verl_musa.patching.model import ABSENT

NORMALISATION = "verl-musa-ast-1"
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class SourceModule:
    """One parsed module, from which several targets are fingerprinted."""

    def __init__(self, source: str, filename: str = "<source>") -> None:
        """Parse ``source``.

        Raises:
            SyntaxError: it is not Python that this interpreter can read.
        """
        self._tree = ast.parse(source, filename)

    def fingerprint(self, qualname: str) -> str:
        """Return the SHA-256 of what binds ``qualname`` (``Class.method``, ``function``, ``NAME``), or ABSENT."""
        nodes = _bindings(self._tree, qualname.split("."))
        if not nodes:
            return ABSENT
        text = "\n".join([NORMALISATION, *map(normalise, nodes)])
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def line(self, qualname: str) -> int | None:
        """Return the line on which ``qualname`` is first bound, None where it is not."""
        nodes = _bindings(self._tree, qualname.split("."))
        return min((getattr(node, "lineno", 1) for node in nodes), default=None)


def normalise(node: object) -> str:
    """Write a syntax tree out as ASCII text in which only what the code does is left."""
    if isinstance(node, ast.Constant):
        return f"Constant({type(node.value).__name__} {node.value!a})"
    if isinstance(node, ast.JoinedStr):
        return f"JoinedStr({', '.join(_joined(node.values))})"
    if isinstance(node, ast.AST):
        return f"{type(node).__name__}({', '.join(_fields(node))})"
    if isinstance(node, list):
        return f"[{', '.join(map(normalise, node))}]"
    return ascii(node)


def _fields(node: ast.AST) -> Iterator[str]:
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(node, _DOCUMENTED):
            value = _without_docstring(node.body)
        if value is None or value == [] or name in _IGNORED_FIELDS:
            continue
        yield f"{name}={normalise(value)}"


def _without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return list(body[1:])
    return list(body)


def _joined(values: Sequence[ast.expr]) -> Iterator[str]:
    literal = ""
    for value in values:
        if isinstance(value, ast.Constant):
            literal += str(value.value)
            continue
        if literal:
            yield f"Constant(str {literal!a})"
            literal = ""
        yield normalise(value)
    if literal:
        yield f"Constant(str {literal!a})"


def _bindings(scope: ast.Module | ast.ClassDef, parts: Sequence[str]) -> list[ast.AST]:
    """Return what binds the dotted name, in source order; alternatives in `if` and `try` branches included."""
    first, *rest = parts
    found = [node for statement in _statements(scope.body) for node in _binding(statement, first)]
    if not rest:
        return found
    return [node for owner in found if isinstance(owner, ast.ClassDef) for node in _bindings(owner, rest)]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of one scope, those nested in compound statements included."""
    for statement in body:
        yield statement
        if isinstance(statement, _NAMED):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []))
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _statements(part.body)


def _binding(statement: ast.stmt, name: str) -> Iterator[ast.AST]:
    if isinstance(statement, _NAMED):
        if statement.name == name:
            yield statement
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            if name in (alias.asname or alias.name, alias.asname or alias.name.partition(".")[0]):
                yield _only(statement, alias)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete):
        targets = statement.targets if isinstance(statement, ast.Assign | ast.Delete) else [statement.target]
        if any(
            isinstance(part, ast.Name) and part.id == name for item in targets for part in _unpacked(item)
        ):
            yield statement


def _unpacked(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _unpacked(element)
    elif isinstance(target, ast.Starred):
        yield from _unpacked(target.value)
    else:
        yield target


def _only(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.AST:
    if isinstance(statement, ast.Import):
        narrowed: ast.stmt = ast.Import(names=[alias])
    else:
        narrowed = ast.ImportFrom(module=statement.module, names=[alias], level=statement.level)
    return ast.copy_location(narrowed, statement)
