"""A shell script as a list of commands, read with tree-sitter's Bash grammar.

tree-sitter is the parser of editors: it always returns a tree and marks what it could not read, so half a script or another
shell's dialect costs the broken part only. bashlex gives up on a whole file at the first construct that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from verl_musa.lint.paths import UNKNOWN_PART
from verl_musa.lint.words import word_set

WORDS: Final = frozenset(
    {"word", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation", "number"}
)
EXPANSIONS: Final = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "process_substitution"}
)
VARIABLES: Final = frozenset({"simple_expansion", "expansion"})
_LITERALS: Final = frozenset({"word", "number", "string_content", "heredoc_content"})
_BODIES: Final = word_set(
    "program do_group compound_statement subshell if_statement elif_clause else_clause case_item while_statement function_definition"
    " command_substitution"
)
_WRAPPERS: Final = word_set("sudo nohup env exec command time setsid stdbuf numactl")
_WRITING: Final = frozenset({">", ">>", "&>", "&>>", ">|", ">&"})


@dataclass(frozen=True)
class Word:
    """One word of a command: its text with unknown parts for expansions, and where it starts."""

    text: str
    node: Node = field(repr=False)

    @property
    def line(self) -> int:
        """1-based line."""
        return self.node.start_point.row + 1

    @property
    def column(self) -> int:
        """1-based column."""
        return self.node.start_point.column + 1

    @property
    def name(self) -> str:
        """The word as it was written, without quotes and braces: two words that name one file are equal in it."""
        return written(self.node).translate(str.maketrans("", "", "\"'{}")).removeprefix("./")

    @property
    def varies(self) -> bool:
        """Whether an expansion is part of it."""
        return any(True for _ in find(self.node, EXPANSIONS))


@dataclass(frozen=True)
class Command:
    """One simple command.

    Attributes:
        name: its name, wrappers such as ``sudo`` and ``nohup`` left out.
        wrappers: those wrappers.
        words: its arguments.
        outputs: files that its standard output goes to.
        node: its node.
        statement: 1-based first line of the statement that it belongs to.
        body: the node whose statement it is part of.
    """

    name: str
    wrappers: tuple[str, ...]
    words: tuple[Word, ...]
    outputs: tuple[Word, ...]
    node: Node = field(repr=False)
    statement: int
    body: Node = field(repr=False)

    @property
    def line(self) -> int:
        """1-based line."""
        return self.node.start_point.row + 1

    @property
    def column(self) -> int:
        """1-based column."""
        return self.node.start_point.column + 1

    @property
    def operands(self) -> tuple[Word, ...]:
        """Arguments that are no options."""
        return tuple(word for word in self.words if not word.text.startswith("-"))

    @property
    def top(self) -> Node:
        """The command with its redirections."""
        parent = self.node.parent
        return parent if parent is not None and parent.type == "redirected_statement" else self.node


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """The tree of a script."""
    return _parser().parse(text.encode("utf-8", "surrogatepass")).root_node


def written(node: Node) -> str:
    """The node's own text."""
    return (node.text or b"").decode("utf-8", "replace")


def find(node: Node, types: frozenset[str]) -> Iterator[Node]:
    """Every node of these types at or below ``node``, in order, each subtree's outermost first."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current.type in types:
            yield current
        stack.extend(reversed(current.children))


def render(node: Node) -> str:
    """The text of a word, with :data:`UNKNOWN_PART` for what is known only at run time."""
    if node.type in EXPANSIONS or node.type == "brace_expression":
        return UNKNOWN_PART
    if node.type in ("raw_string", "ansi_c_string"):
        return written(node).lstrip("$")[1:-1]
    if node.type == "string":
        return _quoted(node)
    if node.type in _LITERALS or not node.children:
        return written(node).replace("\\\n", "")
    return "".join(render(child) for child in node.children)


def _quoted(node: Node) -> str:
    """A double-quoted text: the grammar leaves out blanks between expansions, so it is cut from the source."""
    raw, start = node.text or b"", node.start_byte
    text, at = "", 0
    for child in node.children:
        if child.type in EXPANSIONS:
            text += raw[at : child.start_byte - start].decode("utf-8", "replace") + UNKNOWN_PART
            at = child.end_byte - start
    text += raw[at:].decode("utf-8", "replace")
    return text[1:-1]


def commands(root: Node) -> list[Command]:
    """The simple commands of a script, in order."""
    return [_command(node) for node in find(root, frozenset({"command"}))]


def _command(node: Node) -> Command:
    words: list[Word] = []
    for child in node.children:
        if child.type == "command_name":
            words.append(Word(render(child), child.children[0] if child.children else child))
        elif child.type in WORDS or child.type in EXPANSIONS:
            words.append(Word(render(child), child))
    wrappers: list[str] = []
    while len(words) > 1 and words[0].text in _WRAPPERS:
        wrappers.append(words.pop(0).text)
        while len(words) > 1 and (words[0].text.startswith("-") or "=" in words[0].text):
            words.pop(0)
    statement, body = statement_of(node)
    parent = node.parent
    redirects = (
        parent.children if parent is not None and parent.type == "redirected_statement" else node.children
    )
    name = words[0].text.rpartition("/")[2] if words else ""
    return Command(
        name,
        tuple(wrappers),
        tuple(words[1:]),
        tuple(_outputs(redirects)),
        node,
        statement.start_point.row + 1,
        body,
    )


def _outputs(redirects: list[Node]) -> Iterator[Word]:
    for redirect in redirects:
        inner = redirect.children if redirect.type == "heredoc_redirect" else [redirect]
        for one in inner:
            if one.type != "file_redirect":
                continue
            kinds = [child.type for child in one.children]
            stream = next((written(child) for child in one.children if child.type == "file_descriptor"), "1")
            target = one.children[-1]
            if (
                stream == "1"
                and set(kinds) & _WRITING
                and target.type in WORDS | EXPANSIONS
                and target.type != "number"
            ):
                yield Word(render(target), target)


def statement_of(node: Node) -> tuple[Node, Node]:
    """The statement that ``node`` is part of, and the body that holds it."""
    while node.parent is not None and node.parent.type not in _BODIES:
        node = node.parent
    return node, node.parent or node


def in_background(command: Command) -> bool:
    """Whether the command, or the pipeline that it is in, ends with ``&``."""
    node: Node | None = command.node
    while node is not None and node.type not in _BODIES:
        following = node.next_sibling
        if following is not None and following.type == "&":
            return True
        node = node.parent
    return False
