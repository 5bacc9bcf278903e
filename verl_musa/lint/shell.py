"""Shell scripts: paths, addresses, and the faults that break a launch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from verl_musa.lint import shell_commands, shell_lines, shell_variables, texts
from verl_musa.lint.model import Analysis, Comment, Finding, Source
from verl_musa.lint.paths import UNKNOWN_PART
from verl_musa.lint.shell_tree import (
    EXPANSIONS,
    WORDS,
    Command,
    commands,
    find,
    parse,
    render,
    statement_of,
    written,
)

_FOR_PEOPLE: Final = frozenset({"echo", "printf", "log", "info", "warn", "error", "die", "usage"})
_PATTERNS: Final = frozenset({"sed", "awk", "gawk", "grep", "egrep", "perl", "rg", "jq", "expr", "tr"})
_ROUTES: Final = re.compile(r"url|uri|route|endpoint|api|prefix", re.IGNORECASE)
_MOUNTS: Final = frozenset({"docker", "podman", "nerdctl"})
_VARIABLE: Final = re.compile(r"\$\{[^{}]*\}|\$\w+")


def analyse(source: Source) -> Analysis:
    """Read one script. Parts that the grammar does not know are passed over; nothing is raised."""
    root = parse(source.text)
    found = commands(root)
    findings = [*command_findings(source, root, found, in_image=False)]
    findings += shell_lines.findings(source, root)
    findings += shell_variables.findings(source, root, found)
    comments = [
        Comment(node.start_point.row + 1, written(node), _alone(source, node))
        for node in find(root, frozenset({"comment"}))
    ]
    return Analysis(findings, comments)


def command_findings(
    source: Source, root: Node, found: list[Command], *, in_image: bool
) -> Iterator[Finding]:
    """What is wrong with the commands and the words of a script, or of a ``RUN`` line of a Dockerfile."""
    yield from shell_commands.findings(source, found)
    by_node = {command.node.id: command for command in found}
    for node in _outer_words(root):
        command = _command_of(node, by_node)
        yield from _word(source, node, command, in_image=in_image)
    for node in find(root, frozenset({"variable_assignment"})):
        yield from _assignment(source, node)
    for node in find(root, frozenset({"heredoc_body"})):
        yield from _heredoc(source, node, by_node, in_image=in_image)


def _alone(source: Source, node: Node) -> bool:
    return not source.lines[node.start_point.row][: node.start_point.column].strip()


def _outer_words(root: Node) -> Iterator[Node]:
    """Words that are not parts of other words; those inside an expansion of a word are words of their own."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type == "heredoc_body":
            continue
        if node.type in WORDS:
            yield node
            stack.extend(reversed([inner for child in _expansions(node) for inner in child.children]))
        else:
            stack.extend(reversed(node.children))


def _expansions(node: Node) -> Iterator[Node]:
    stack = list(node.children)
    while stack:
        child = stack.pop(0)
        if child.type in EXPANSIONS:
            yield child
        else:
            stack.extend(child.children)


def _command_of(node: Node, by_node: dict[int, Command]) -> Command | None:
    parent = node.parent
    while parent is not None and parent.id not in by_node:
        if parent.type in ("command_substitution", "variable_assignment", "file_redirect"):
            return None
        parent = parent.parent
    return by_node[parent.id] if parent is not None else None


def _word(source: Source, node: Node, command: Command | None, *, in_image: bool) -> Iterator[Finding]:
    text = render(node)
    name = command.name if command is not None else ""
    if name in _PATTERNS | {"export"} and node.type != "word":
        return
    if name in _FOR_PEOPLE and not (command and command.outputs):
        return
    line, column = node.start_point.row + 1, node.start_point.column + 1
    statement = statement_of(node)[0].start_point.row + 1
    plain = not re.search(r"\s", text.strip())
    if command is not None and name in _MOUNTS and text.count(":") and plain and _is_mount(node):
        text = text.partition(":")[0]  # what follows is a path in the container
    route = _is_route(node)
    used = plain and not route and name not in _PATTERNS
    yield from texts.path_findings(
        source,
        text,
        line,
        column,
        statement=statement,
        used_as_path=used,
        in_image=in_image,
        only_known_roots=route,
    )
    yield from texts.address_findings(source, text, line, column, statement=statement)


def _is_mount(node: Node) -> bool:
    before = node.prev_sibling
    return bool(before is not None and written(before) in ("-v", "--volume")) or written(node).startswith(
        "--volume="
    )


def _is_route(node: Node) -> bool:
    """Whether the word is the value of something that is called a URL or a route."""
    parent, before = node.parent, node.prev_sibling
    if parent is not None and parent.type == "variable_assignment" and parent.children:
        return bool(_ROUTES.search(written(parent.children[0])))
    option = written(before) if before is not None else ""
    return bool(_ROUTES.search(option if option.startswith("-") else written(node).partition("=")[0]))


def _assignment(source: Source, node: Node) -> Iterator[Finding]:
    if len(node.children) < len(("NAME", "=", "value")):
        return
    name, value = written(node.children[0]), render(node.children[-1])
    if UNKNOWN_PART in value:
        return
    statement = statement_of(node)[0].start_point.row + 1
    yield from texts.setting_findings(
        source, name, value, node.start_point.row + 1, node.start_point.column + 1, statement=statement
    )


def _heredoc(source: Source, node: Node, by_node: dict[int, Command], *, in_image: bool) -> Iterator[Finding]:
    outer = node.parent.parent if node.parent is not None else None
    command = (
        next((by_node[child.id] for child in outer.children if child.id in by_node), None) if outer else None
    )
    piped = outer is not None and outer.parent is not None and outer.parent.type == "pipeline"
    if command is not None and command.name == "cat" and not command.outputs and not piped:
        return  # a text for people
    line, statement = node.start_point.row + 1, statement_of(node)[0].start_point.row + 1
    text = _VARIABLE.sub(UNKNOWN_PART, written(node))
    yield from texts.path_findings(source, text, line, 0, statement=statement, in_image=in_image)
    yield from texts.address_findings(source, text, line, 0, statement=statement)
