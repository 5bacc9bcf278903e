"""Faults of a script's line structure: what ends a continued command before its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from verl_musa.lint import rules
from verl_musa.lint.model import Finding, Source
from verl_musa.lint.shell_tree import find

_CONTINUES: Final = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_BLANK: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[ \t]+(#.*)?$")
_OPERATOR: Final = re.compile(r"(?:\||&&)\s*\\$")
_OPTION: Final = re.compile(
    r"\s*(?:-{1,2}[A-Za-z]|\+{1,2}[\w.]+=|[\"']?\$[@{*A-Za-z]|[\w-]+\.[\w.-]+=|\"\$@\")"
)
_SETTING: Final = re.compile(r"\s*[\"']?[\w.+@-]+=")
_TEXTS: Final = frozenset({"string", "raw_string", "ansi_c_string", "heredoc_body"})


def findings(source: Source, root: Node) -> Iterator[Finding]:
    """Comments inside continuations, and blanks after a continuing backslash."""
    inside = _rows_inside(root, _TEXTS)
    comments = {node.start_point.row: node for node in find(root, frozenset({"comment"}))}
    arrays = _rows_inside(root, frozenset({"array"}))
    for row, node in comments.items():
        if row not in arrays and _ends_command(source, comments, row, node.start_point.column):
            lost = _continued(source, comments, row)
            message = f"the comment ends the command; what follows from line {lost + 1} on is not part of it"
            yield source.finding(
                rules.COMMENT_IN_CONTINUATION,
                row + 1,
                node.start_point.column + 1,
                message,
                statement=_start(source, row) + 1,
            )
    for row, line in enumerate(source.lines[:-1]):
        found = _BLANK.search(line)
        commented = row in comments and comments[row].start_point.column <= (found.start() if found else 0)
        if found and not commented and row + 1 not in inside and source.lines[row + 1].strip():
            message = f"{'a comment' if found[1] else 'a blank'} follows the backslash at the end of the line"
            yield source.finding(
                rules.BLANK_AFTER_BACKSLASH,
                row + 1,
                len(line[: found.start()].encode()) + 1,
                message,
                statement=_start(source, row) + 1,
            )


def _rows_inside(root: Node, types: frozenset[str]) -> set[int]:
    """Rows whose first character lies inside a node of these types."""
    rows: set[int] = set()
    for node in find(root, types):
        first = node.start_point.row + (node.type != "heredoc_body")
        rows.update(range(first, node.end_point.row + 1))
    return rows


def _ends_command(source: Source, comments: dict[int, Node], row: int, column: int) -> bool:
    line = source.lines[row]
    before = source.lines[row - 1] if row else ""
    continued = bool(_CONTINUES.search(before)) and row - 1 not in comments and not _OPERATOR.search(before)
    lost = _continued(source, comments, row)
    if lost < 0:
        return False
    if line[:column].strip():  # a comment after code: it swallows the backslash that was meant to continue
        return bool(_CONTINUES.search(line)) and (continued or lost == row + 1)
    return continued


def _continued(source: Source, comments: dict[int, Node], row: int) -> int:
    """Row of the first line below that reads as more arguments of the command; -1 where none does."""
    start = source.lines[_start(source, row)]
    indent = len(start) - len(start.lstrip())
    for number, line in enumerate(source.lines[row + 1 :], start=row + 1):
        if number in comments and line.lstrip().startswith("#"):
            continue
        deeper, goes_on = len(line) - len(line.lstrip()) > indent, bool(_CONTINUES.search(line))
        more = _OPTION.match(line) or (_SETTING.match(line) and (deeper or goes_on)) or (deeper and goes_on)
        return number if line.strip() and more else -1
    return -1


def _start(source: Source, row: int) -> int:
    """Row on which the continued command begins."""
    while row and (
        _CONTINUES.search(source.lines[row - 1]) or source.lines[row - 1].lstrip().startswith("#")
    ):
        if source.lines[row - 1].lstrip().startswith("#") and not (
            row > 1 and _CONTINUES.search(source.lines[row - 2])
        ):
            break
        row -= 1
    return row
