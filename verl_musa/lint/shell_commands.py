"""Faults of single commands: unquoted operands, lost output, processes ended by name, the wrong file made executable."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from verl_musa.lint import rules
from verl_musa.lint.model import Finding, Rule, Source
from verl_musa.lint.shell_tree import VARIABLES, Command, Word, find, in_background, written
from verl_musa.lint.words import word_set

_PATH_COMMANDS: Final = frozenset({"rm", "cd", "cp", "mv", "rmdir", "pushd"})
_NUMBERS: Final = re.compile(r"\$[#?$!0-9-]|\$\{#.*\}")
_REMOTE: Final = word_set("ssh pdsh bash sh parallel-ssh pssh docker kubectl su eval")
_KILLERS: Final = re.compile(r"(?:^|[\s;&|(])(?:sudo\s+)?(pkill|killall)\s")
_BY_ID: Final = re.compile(r"-(?:P|g|s|F)\d*|--(?:parent|pgroup|session|pidfile)(?:=.*)?")
_LISTERS: Final = re.compile(r"\b(?:pgrep|pidof|ps|lsof)\b")
_HOSTFILE: Final = re.compile(
    r"host_?(?:file|list|s)?s?\b(?:\.\w+)?|machine_?file|node_?(?:file|list|s)\b|(?:hosts|nodes|machines)(?:\.\w+)?$",
    re.IGNORECASE,
)
_FIRST_LINE: Final = re.compile(r"-1|-n1|--lines=1")
_SED_FIRST: Final = re.compile(r"1p(?:;.*)?|1q|1!d")
_AWK_FIRST: Final = re.compile(r"(?:NR|FNR)\s*==\s*1\b")
_EXECUTABLE: Final = re.compile(r"(?:[ugoa]*\+[rwX]*x\w*|[0-7]?[1357][0-7]{2})")
_SCRIPT: Final = re.compile(r"\.(?:sh|bash|py)$")
_WRITERS: Final = frozenset({"cat", "echo", "printf", "tee", "envsubst", "sed"})
_ASIDE: Final = frozenset({"echo", "printf", "true", ":", "sync"})


def findings(source: Source, commands: Sequence[Command]) -> Iterator[Finding]:
    """Everything wrong with the commands of one script."""
    for command in commands:
        yield from _unquoted(source, command)
        yield from _nohup(source, command, commands)
        yield from _killed(source, command)
        yield from _head(source, command)
    yield from _chmod(source, commands)


def _at(source: Source, rule: Rule, command: Command, message: str, word: Word | None = None) -> Finding:
    place = word or command
    return source.finding(rule, place.line, place.column, message, statement=command.statement)


def _unquoted(source: Source, command: Command) -> Iterator[Finding]:
    if command.name not in _PATH_COMMANDS:
        return
    for word in command.words:
        bare = [word.node] if word.node.type in VARIABLES else []
        if word.node.type == "concatenation":
            bare = [child for child in word.node.children if child.type in VARIABLES]
        for node in bare:
            if not _NUMBERS.fullmatch(written(node)):
                yield _at(
                    source,
                    rules.UNQUOTED,
                    command,
                    f"{command.name} {written(word.node)}: {written(node)} is unquoted",
                    word,
                )
                break


def _nohup(source: Source, command: Command, commands: Sequence[Command]) -> Iterator[Finding]:
    if "nohup" not in command.wrappers or not in_background(command):
        return
    outputs = [*command.outputs]
    parent = command.top.parent
    if parent is not None and parent.type == "pipeline":
        inside = [one for one in commands if parent.start_byte <= one.node.start_byte < parent.end_byte]
        outputs += [
            word for one in inside for word in (*one.outputs, *(one.operands if one.name == "tee" else ()))
        ]
    outputs += [word for one in commands if one.name == "exec" for word in one.outputs]
    if not outputs:
        message = "nohup in the background without a file for its output: it all goes into one nohup.out"
    elif all(word.text == "/dev/null" for word in outputs):
        message = "nohup in the background with its output thrown away"
    elif not any(word.varies for word in outputs):
        message = f"the output goes to {outputs[0].text!r} in every run: the next one overwrites or mixes it"
    else:
        return
    yield _at(source, rules.NOHUP, command, message)


def _killed(source: Source, command: Command) -> Iterator[Finding]:
    texts = [word.text for word in command.words]
    if command.name in ("pkill", "killall"):
        if not any(_BY_ID.fullmatch(text) for text in texts):
            yield _at(source, rules.KILL_BY_NAME, command, " ".join([command.name, *texts]))
        return
    if command.name in _REMOTE:
        for word in command.words:
            found = _KILLERS.search(f"{word.text} ")
            if found and re.search(r"\s", word.text):
                yield _at(source, rules.KILL_BY_NAME, command, f"{found[1]} on another host or shell", word)
    if command.name == "kill":
        for word in command.words:
            inner = [written(node) for node in find(word.node, frozenset({"command_substitution"}))]
            if inner and _LISTERS.search(inner[0]) and not re.search(r"pgrep\s+-P", inner[0]):
                yield _at(source, rules.KILL_BY_NAME, command, f"kill {inner[0]}", word)
    parent = command.top.parent
    if (
        command.name == "xargs"
        and "kill" in texts
        and parent is not None
        and _LISTERS.search(written(parent))
    ):
        yield _at(source, rules.KILL_BY_NAME, command, "every process of a listing is ended")


def _head(source: Source, command: Command) -> Iterator[Finding]:
    texts = [word.text for word in command.words]
    first = (
        (
            command.name == "head"
            and (any(_FIRST_LINE.fullmatch(text) for text in texts) or _follows(texts, "-n", "1"))
        )
        or (command.name == "sed" and any(_SED_FIRST.fullmatch(text) for text in texts))
        or (command.name in ("awk", "gawk", "mawk") and any(_AWK_FIRST.search(text) for text in texts))
    )
    if not first:
        return
    parent = command.top.parent
    names = [word.name for word in command.operands]
    if parent is not None and parent.type == "pipeline" and parent.children[0].id != command.top.id:
        names = written(parent.children[0]).replace('"', "").split()[1:]
    chosen = next(
        (name for name in names if _HOSTFILE.search(name.rpartition("/")[2]) and name != "/etc/hosts"), None
    )
    if chosen:
        yield _at(
            source, rules.HOSTFILE_HEAD, command, f"the first line of {chosen} decides which host is the head"
        )


def _follows(texts: Sequence[str], option: str, value: str) -> bool:
    return (option, value) in itertools.pairwise(texts)


def _chmod(source: Source, commands: Sequence[Command]) -> Iterator[Finding]:
    made: set[str] = set()
    changed = {
        name for one in commands if one.name == "chmod" for name in (word.name for word in one.operands[1:])
    }
    last: tuple[Command, Word] | None = None
    for command in commands:
        if command.name == "chmod":
            if last is not None and last[0].body.id == command.body.id:
                yield from _wrong_file(source, command, last[1], made, changed)
            last = None
            continue
        written_here = _made(command)
        made.update(word.name for word in written_here)
        scripts = [word for word in written_here if _SCRIPT.search(word.text) or "#!" in written(command.top)]
        if command.name in _WRITERS and scripts:
            last = command, scripts[0]
        elif command.name not in _ASIDE:
            last = None


def _wrong_file(
    source: Source, chmod: Command, fresh: Word, made: set[str], changed: set[str]
) -> Iterator[Finding]:
    operands = chmod.operands
    if not operands or not _EXECUTABLE.fullmatch(operands[0].text) or fresh.name in changed:
        return
    for word in operands[1:]:
        if word.name not in made and not re.search(r"[*?\[]", word.text):
            message = f"{fresh.name} was written on line {fresh.line}, and {word.name} is made executable"
            yield _at(source, rules.CHMOD_OTHER, chmod, message, word)


def _made(command: Command) -> list[Word]:
    """Files that the command makes."""
    files = [*command.outputs]
    if command.name in ("tee", "touch", "mkdir", "mktemp", "tar", "unzip"):
        files += command.operands
    elif command.name in ("cp", "mv", "ln", "install", "rsync", "git"):
        files += command.operands[-1:]
    elif command.name in ("curl", "wget", "gcc", "g++", "go"):
        files += [
            word
            for before, word in itertools.pairwise(command.words)
            if before.text in ("-o", "-O", "--output")
        ]
    return files
