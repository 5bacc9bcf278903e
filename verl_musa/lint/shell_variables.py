"""Variables that a script uses and nobody sets: they render as empty text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from tree_sitter import Node

from verl_musa.lint import rules
from verl_musa.lint.model import Finding, Source
from verl_musa.lint.shell_tree import VARIABLES, Command, find, statement_of, written
from verl_musa.lint.words import word_set

_KNOWN: Final = word_set(
    "HOME PATH USER LOGNAME PWD OLDPWD SHELL TERM LANG TMPDIR HOSTNAME HOSTTYPE OSTYPE MACHTYPE UID EUID PPID RANDOM SECONDS LINENO IFS"
    " BASH BASHPID EPOCHSECONDS EPOCHREALTIME FUNCNAME PIPESTATUS OPTARG OPTIND REPLY COLUMNS LINES DISPLAY EDITOR PAGER CI SUDO_USER"
    " PYTHONPATH LD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH MANPATH VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV XDG_CACHE_HOME"
    " XDG_CONFIG_HOME XDG_RUNTIME_DIR RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK NNODES NPROC_PER_NODE MASTER_ADDR MASTER_PORT"
    " http_proxy https_proxy no_proxy all_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY PS1 PS4 PROMPT_COMMAND SSH_CONNECTION"
    " MUSA_HOME MUSA_PATH CUDA_HOME CUDA_PATH"
)
_KNOWN_PREFIXES: Final = tuple(
    word_set(
        "SLURM_ BASH_ GITHUB_ CI_ KUBERNETES_ PBS_ LSB_ OMPI_ PMI_ PMIX_ RAY_ HF_ HUGGING WANDB_ SSH_ LC_ XDG_ CONDA_ PIP_ NVIDIA_ CUDA_"
        " MUSA_ MTHREADS_ NCCL_ MCCL_ VERL_ COMP_"
    )
)
_SETTERS: Final = word_set("read mapfile readarray getopts let local export declare typeset unset")
_HANDLED: Final = frozenset({":-", "-", ":=", "=", ":?", "?", ":+", "+"})
_SETTING: Final = frozenset({":=", "=", ":?", "?"})
_NOUNSET: Final = re.compile(
    r"(?m)^\s*set\s+(?:\S+\s+)*(?:-[a-zA-Z]*u[a-zA-Z]*|-o\s+nounset)(?=\s|$|;)|^#!.*\s-[a-zA-Z]*u"
)
_ARITHMETIC: Final = re.compile(r"\b([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)")
_ASSIGNED: Final = re.compile(
    r"(?:^|[;&|({]|\b(?:then|do|else))\s*(?:(?:export|local|readonly|declare|typeset)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)\+?="
    r"|\bfor\s+([A-Za-z_]\w*)"
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_ACTIVATE: Final = re.compile(r"(?:activate|conda\.sh|bashrc|profile|setvars\.sh|set_env\.sh|os-release)$")


def findings(source: Source, root: Node, commands: Sequence[Command]) -> Iterator[Finding]:
    """One finding for each variable that is never set, at its first use.

    Silent where the script itself would stop (``set -u``), and where it reads settings from another file or from ``eval``.
    """
    if _NOUNSET.search(source.text) or _reads_settings(commands):
        return
    known = _set_here(root, commands) | _set_by_lines(source)
    for node in find(root, VARIABLES):
        name, operator = _used(node)
        if not name or name in known:
            continue
        known.add(name)  # one finding a name, and none after ${NAME:=default}
        if operator in _HANDLED:
            known -= set() if operator in _SETTING else {name}
            continue
        if _is_environment(name):
            continue
        rule = rules.UNSET_ENVIRONMENT if name.isupper() else rules.UNSET
        statement, _ = statement_of(node)
        message = f"${name} is set nowhere in this script, so that it may be empty here"
        yield source.finding(
            rule,
            node.start_point.row + 1,
            node.start_point.column + 1,
            message,
            statement=statement.start_point.row + 1,
        )


def _is_environment(name: str) -> bool:
    return name in _KNOWN or name.startswith(_KNOWN_PREFIXES)


def _used(node: Node) -> tuple[str, str]:
    """Name of the variable that an expansion reads, and its operator; no name for ``$1``, ``$?``, ``${!x}``, ``${#x}``."""
    names = [child for child in node.children if child.type in ("variable_name", "subscript")]
    if not names or any(
        child.type in ("!", "#") and child.start_byte < names[0].start_byte for child in node.children
    ):
        return "", ""
    name = _NAME.match(written(names[0]))
    operator = next((child.type for child in node.children if child.type in _HANDLED), "")
    return (name[0] if name else ""), operator


def _reads_settings(commands: Sequence[Command]) -> bool:
    for command in commands:
        if command.name == "eval":
            return True
        if command.name in ("source", ".") and command.words and not _ACTIVATE.search(command.words[0].text):
            return True
    return False


def _set_here(root: Node, commands: Sequence[Command]) -> set[str]:
    names: set[str] = set()
    for node in find(
        root, frozenset({"variable_assignment", "declaration_command", "for_statement", "select_statement"})
    ):
        for child in node.children:
            if child.type in ("variable_name", "subscript", "word"):
                names.update(_NAME.findall(written(child))[:1])
    for node in find(
        root,
        frozenset({"arithmetic_expansion", "compound_statement", "c_style_for_statement", "test_command"}),
    ):
        text = written(node)
        if node.type != "compound_statement" or text.startswith("(("):
            names.update(_ARITHMETIC.findall(text))
    for command in commands:
        names.update(_set_by(command))
    for test in find(
        root, frozenset({"test_command"})
    ):  # [ -z "$X" ], [[ $X == 1 ]]: empty is one of the cases
        names.update(_used(node)[0] for node in find(test, VARIABLES))
    return names


def _set_by_lines(source: Source) -> set[str]:
    """Names that read as set, line by line: the tree lacks those beside a construct that the grammar does not know."""
    names: set[str] = set()
    for before, line in itertools.pairwise(["", *source.lines]):
        if not before.endswith("\\"):  # else key=value are arguments of a command
            names.update(name for found in _ASSIGNED.findall(line) for name in found if name)
    return names


def _set_by(command: Command) -> Iterator[str]:
    if command.name in _SETTERS:
        for word in command.words:
            yield from _NAME.findall(word.text)[:1] if not word.text.startswith("-") else ()
    if command.name == "printf" and len(command.words) > 1 and command.words[0].text == "-v":
        yield command.words[1].text
    if command.name == "test":
        yield from (_used(node)[0] for word in command.words for node in find(word.node, VARIABLES))
