"""Dockerfiles: what makes an image differ from one build to the next, or ties it to one site. hadolint does the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from verl_musa.lint import rules, secrets, texts
from verl_musa.lint.model import Analysis, Comment, Finding, Rule, Source
from verl_musa.lint.paths import UNKNOWN_PART
from verl_musa.lint.shell import command_findings
from verl_musa.lint.shell_tree import Command, commands, parse
from verl_musa.lint.words import word_set

_INSTRUCTION: Final = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_FLAG: Final = re.compile(r"\s*--[a-z-]+(?:=\S+)?")
_HEREDOC: Final = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_PAIR: Final = re.compile(r"([A-Za-z_]\w*)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?:[^\s\\]|\\.)*)")
_REFERENCE: Final = re.compile(r"\$\{?(\w+)(?::?-([^}]*))?\}?")
_INDEX_NAME: Final = re.compile(r"(?:PIP|UV)_(?:EXTRA_|DEFAULT_)?(?:INDEX(?:_URL)?|FIND_LINKS|TRUSTED_HOST)")
_INDEX_OPTIONS: Final = word_set(
    "-i --index-url --extra-index-url -f --find-links --trusted-host --index --default-index"
)
_VALUE_OPTIONS: Final = _INDEX_OPTIONS | word_set(
    "-r --requirement -c --constraint -e --editable -t --target --prefix --root --python -p --platform --timeout --retries --cert"
    " --proxy --progress-bar --no-binary --only-binary --python-version --config-settings -C --log --src --cache-dir"
)
_PUBLIC_INDEXES: Final = (
    "pypi.org",
    "files.pythonhosted.org",
    "download.pytorch.org",
    "localhost",
    "127.0.0.1",
)
_URL: Final = re.compile(r"(?:https?://)?(?:[^@/\s]*@)?([\w.-]+\.\w+)(?::\d+)?(?:/|$)")
_REQUIREMENT: Final = re.compile(
    r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]*\])?(?:\s*(?:[<>~!]=?|===?)\s*[\w.*+!,<>=~ -]+)?"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction: its first line, its name in capitals, and its text with the physical lines kept."""

    line: int
    name: str
    text: str


def analyse(source: Source) -> Analysis:
    """Read one Dockerfile; nothing is raised."""
    findings: list[Finding] = []
    defaults: dict[str, str] = {}
    stages: set[str] = set()
    for one in instructions(source.lines):
        if one.name == "FROM":
            findings += _base(source, one, defaults, stages)
        elif one.name in ("ARG", "ENV"):
            findings += _settings(source, one, defaults)
        if one.name == "RUN":
            findings += _run(source, one)
        elif one.name not in ("FROM", "LABEL", "MAINTAINER"):
            findings += texts.path_findings(source, one.text, one.line, 1, in_image=True)
            findings += texts.address_findings(source, one.text, one.line, 1)
    comments = [
        Comment(number, line.strip(), alone=True)
        for number, line in enumerate(source.lines, start=1)
        if line.lstrip().startswith("#")
    ]
    return Analysis(findings, comments)


def instructions(lines: Sequence[str]) -> Iterator[Instruction]:
    """The instructions of a Dockerfile. Comment lines inside a continued one are blanked, as the builder does."""
    at = 0
    while at < len(lines):
        start, text = at, lines[at]
        at += 1
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        while text.rstrip().endswith("\\") and at < len(lines):
            more = lines[at]
            text += "\n" + ("\\" if not more.strip() or more.lstrip().startswith("#") else more)
            at += 1
        for word in _HEREDOC.findall(text) if re.match(r"\s*(?:RUN|COPY|ADD)\b", text, re.IGNORECASE) else ():
            while at < len(lines):
                text += "\n" + lines[at]
                at += 1
                if lines[at - 1].strip() == word:
                    break
        found = _INSTRUCTION.match(text)
        if found:
            yield Instruction(start + 1, found[1].upper(), text)


def _arguments(one: Instruction) -> str:
    """The instruction's text without its name, continuations joined."""
    return re.sub(r"\\\n", " ", one.text.strip()[len(one.name) :]).strip()


def _base(source: Source, one: Instruction, defaults: dict[str, str], stages: set[str]) -> Iterator[Finding]:
    words = [word for word in _arguments(one).split() if not word.startswith("--")]
    if not words:
        return
    known = True

    def value(found: re.Match[str]) -> str:
        nonlocal known
        text = defaults.get(found[1], "") or found[2] or ""
        known = known and bool(text)
        return text

    image = _REFERENCE.sub(value, words[0])
    if known and image.lower() not in stages and image != "scratch" and "@" not in image:
        _, colon, tag = image.rpartition("/")[2].partition(":")
        if not colon or tag == "latest":
            message = f"{image} has no version" if not colon else f"{image} is whatever was pushed last"
            yield source.finding(rules.DOCKER_BASE, one.line, 1, message)
    if len(words) > len(("image", "as")) and words[1].upper() == "AS":
        stages.add(words[2].lower())


def _settings(source: Source, one: Instruction, defaults: dict[str, str]) -> Iterator[Finding]:
    text = _arguments(one)
    pairs = [(name, value.strip("\"'")) for name, value in _PAIR.findall(text)]
    if not pairs:
        name, _, value = text.partition(" ")
        pairs = [(name, value.strip())]
    for name, value in pairs:
        if one.name == "ARG":
            defaults[name] = value
        if secrets.is_secret_name(name) and (value or one.name == "ARG"):
            yield _at_name(source, rules.DOCKER_SECRET, one, name, f"{one.name} {name}")
        elif _INDEX_NAME.fullmatch(name) and _site_index(value):
            yield _at_name(source, rules.DOCKER_INDEX, one, name, f"{name}={_site_index(value)}")
        else:
            found = _at_name(source, rules.INTERFACE, one, name, "")
            yield from texts.setting_findings(source, name, value, found.line, 1, statement=one.line)


def _at_name(source: Source, rule: Rule, one: Instruction, name: str, message: str) -> Finding:
    before = one.text.partition(name)[0]
    return source.finding(rule, one.line + before.count("\n"), 1, message, statement=one.line)


def _site_index(value: str) -> str:
    """Host of a package index that is not everybody's; empty where it is."""
    found = _URL.match(value)
    host = found[1] if found else ""
    return "" if host.endswith(_PUBLIC_INDEXES) else host


def _run(source: Source, one: Instruction) -> Iterator[Finding]:
    """A ``RUN`` line, read as the shell script that it is, each line at its own place."""
    shell = one.text.lstrip()[len("RUN") :]
    while (flag := _FLAG.match(shell)) is not None:
        shell = shell[flag.end() :]
    opening = _HEREDOC.match(shell.lstrip())
    if opening:
        shell = "\n" + shell.partition("\n")[2].rpartition("\n")[0]
    elif shell.lstrip().startswith("["):
        shell = re.sub(r"[\[\],]", " ", shell)
    root = parse("\n" * (one.line - 1) + shell)
    found = commands(root)
    yield from command_findings(source, root, found, in_image=True)
    for command in found:
        yield from _pip(source, command)


def _pip(source: Source, command: Command) -> Iterator[Finding]:
    texts_ = [word.text for word in command.words]
    python = bool(re.fullmatch(r"python[\d.]*", command.name)) and texts_[:2] == ["-m", "pip"]
    if not (command.name in ("pip", "pip3", "uv") or python):
        return
    if "config" in texts_ and "set" in texts_ and texts_ and _site_index(texts_[-1]):
        yield source.finding(
            rules.DOCKER_INDEX,
            command.line,
            command.column,
            f"index {_site_index(texts_[-1])}",
            statement=command.statement,
        )
    if "install" not in texts_:
        return
    words = command.words[texts_.index("install") + 1 :]
    before = ""
    constrained = any(text in ("-c", "--constraint") or text.startswith("--constraint=") for text in texts_)
    for word in words:
        option, _, value = word.text.partition("=")
        if before in _INDEX_OPTIONS or option in _INDEX_OPTIONS:
            host = _site_index(word.text if before in _INDEX_OPTIONS else value)
            if host:
                message = f"index {host}"
                yield source.finding(
                    rules.DOCKER_INDEX, word.line, word.column, message, statement=command.statement
                )
        elif (
            before not in _VALUE_OPTIONS
            and not word.text.startswith("-")
            and not constrained
            and _unpinned(word.text)
        ):
            message = f"{word.text} without a version"
            yield source.finding(
                rules.DOCKER_UNPINNED, word.line, word.column, message, statement=command.statement
            )
        before = word.text if word.text in _VALUE_OPTIONS else ""


def _unpinned(text: str) -> bool:
    if (
        UNKNOWN_PART in text
        or "/" in text
        or text.startswith(".")
        or re.search(r"\.(?:whl|tar\.gz|zip)$", text)
    ):
        return False
    return bool(_REQUIREMENT.fullmatch(text)) and not re.search(r"===?[^*]+$", text)
