"""Fold an expression to the text that it yields, as far as it can be known without running it."""

from __future__ import annotations

import ast
import re
from typing import Final

from verl_musa.lint.paths import UNKNOWN_PART

_JOINS: Final = frozenset({"os.path.join", "path.join", "posixpath.join", "osp.join", "ntpath.join"})
_PATHS: Final = frozenset({"Path", "PurePath", "PosixPath", "PurePosixPath"})
_THROUGH: Final = frozenset(
    {"str", "os.fspath"}
    | {
        f"{module}.{name}"
        for module in ("os.path", "path", "osp")
        for name in ("expanduser", "abspath", "realpath", "normpath")
    }
)
_PATH_METHODS: Final = frozenset({"expanduser", "resolve", "absolute", "as_posix"})
_PERCENT: Final = re.compile(r"%(?:\(\w+\))?[-+#0 ]*[\d*]*(?:\.\d+)?[a-zA-Z]")
_BRACES: Final = re.compile(r"\{[^{}]*\}")


def dotted(node: ast.AST) -> str:
    """``os.path.join`` for the expression that reads so; unknown parts are left out."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return ""


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name, such as ``join``."""
    return dotted(node).rpartition(".")[2] or (node.attr if isinstance(node, ast.Attribute) else "")


class Fold:
    """One folded expression.

    Attributes:
        text: what it yields, with :data:`UNKNOWN_PART` for each part that is not known; None where nothing is.
        used: the nodes that went into it.
    """

    def __init__(self, node: ast.expr) -> None:
        self.used: set[ast.AST] = set()
        self.text = self._fold(node)

    def _fold(self, node: ast.expr) -> str | None:
        text = self._known(node)
        if text is not None:
            self.used.add(node)
        return text

    def _or_unknown(self, node: ast.expr) -> str:
        text = self._fold(node)
        return UNKNOWN_PART if text is None else text

    def _known(self, node: ast.expr) -> str | None:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr():
                return "".join(self._or_unknown(part) for part in node.values)
            case ast.FormattedValue():
                return self._fold(node.value)
            case ast.BinOp():
                return self._operation(node)
            case ast.Call() if not any(isinstance(argument, ast.Starred) for argument in node.args):
                return self._call(node)
        return None

    def _operation(self, node: ast.BinOp) -> str | None:
        if isinstance(node.op, ast.Mod):
            left = self._fold(node.left)
            return None if left is None else _PERCENT.sub(UNKNOWN_PART, left)
        if not isinstance(node.op, ast.Add | ast.Div):
            return None
        left, right = self._fold(node.left), self._fold(node.right)
        if left is None and right is None:
            return None
        left, right = left or UNKNOWN_PART * (left is None), right or UNKNOWN_PART * (right is None)
        return left + right if isinstance(node.op, ast.Add) else _joined([left, right])

    def _call(self, node: ast.Call) -> str | None:
        name = dotted(node.func)
        if name in _JOINS or name.rpartition(".")[2] in _PATHS:
            return self._join([], node.args)
        if name in _THROUGH and node.args:
            return self._fold(node.args[0])
        return self._method(node, node.func) if isinstance(node.func, ast.Attribute) else None

    def _method(self, node: ast.Call, called: ast.Attribute) -> str | None:
        if called.attr == "format":
            template = self._fold(called.value)
            return None if template is None else _BRACES.sub(UNKNOWN_PART, template)
        if called.attr in _PATH_METHODS and isinstance(called.value, ast.Call | ast.BinOp):
            return self._fold(called.value)
        return self._join([self._or_unknown(called.value)], node.args) if called.attr == "joinpath" else None

    def _join(self, start: list[str], arguments: list[ast.expr]) -> str | None:
        parts = [*start, *(self._or_unknown(argument) for argument in arguments)]
        return _joined(parts) if any(part != UNKNOWN_PART for part in parts) else None


def _joined(parts: list[str]) -> str:
    """Join as ``os.path.join`` does: a part that is absolute drops what stands before it."""
    text = ""
    for part in parts:
        text = part if part.startswith("/") or not text else f"{text.rstrip('/')}/{part}"
    return text
