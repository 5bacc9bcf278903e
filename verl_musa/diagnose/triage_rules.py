"""The rule pack: what a line of a log means, as data.

A pattern is one of RE2's: no input makes it slow, which Python's own ``re`` cannot promise for the lines of a job gone wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import re2
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from verl_musa.errors import LintError

RULES = Path(__file__).with_name("rules")
LAYERS = ("MUSA", "MCCL", "Ray", "SGLang", "Megatron", "verl", "Python", "OS")
Kind = Literal["cause", "consequence", "context"]
LEAST_LITERAL = 4
MEMORY = 32 << 20
BUILT_IN = {"host", "process", "pid"}
"""What ``what`` and ``fix`` may name without a pattern for it: where the line came from."""

ID = r"^[a-z0-9]+\.[a-z0-9-]+$"


class TriageRulesError(LintError):
    """A file of the rule pack that cannot be used as it stands."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Rule(_Part):
    """One rule.

    Attributes:
        id: ``layer.name``.
        kind: ``cause``; ``consequence`` of something else, shown as first only where no cause is found; or ``context``: known and
            harmless, never shown as first.
        match: patterns, one of which is in the line (or in the text of one exception of a traceback).
        also: patterns that are each somewhere in the same file.
        unless: patterns that are nowhere in the same file.
        differ: two named groups of ``match`` and ``also`` that must not have the same value.
        what: one sentence; ``{name}`` stands for a named group.
        fix: what to do.
        links: where to read on.
        following: how many lines after it belong to the evidence, such as the ``what():`` of an abort.
        priority: which rule has a line that several match; the higher one.
        examples: pieces of logs that this rule alone explains.
    """

    id: str = Field(pattern=ID)
    kind: Kind
    match: tuple[str, ...] = Field(min_length=1)
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    differ: tuple[str, str] | None = None
    what: str = Field(min_length=10)
    fix: str = ""
    links: tuple[str, ...] = ()
    following: int = Field(default=0, ge=0, le=12)
    priority: int = Field(default=50, ge=1, le=99)
    examples: tuple[str, ...] = Field(min_length=1)
    layer: str = ""

    @field_validator("match", "also", "unless")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            _compile(pattern)
            literal(pattern)
        return patterns

    @field_validator("links")
    @classmethod
    def _links(cls, links: tuple[str, ...]) -> tuple[str, ...]:
        for link in links:
            if not link.startswith(("https://", "docs/")):
                raise ValueError(f"{link!r}: expected https://… or docs/…")
        return links

    @model_validator(mode="after")
    def _whole(self) -> Rule:
        if self.kind != "context" and not self.fix:
            raise ValueError("fix: expected one line that says what to do")
        groups = {name for pattern in (*self.match, *self.also) for name in _groups(pattern)}
        if self.differ and (missing := set(self.differ) - groups):
            raise ValueError(f"differ: no pattern has the group {', '.join(sorted(missing))}")
        groups |= BUILT_IN
        try:
            self.what.format_map(dict.fromkeys(groups, ""))
            self.fix.format_map(dict.fromkeys(groups, ""))
        except (KeyError, ValueError, IndexError) as error:
            raise ValueError(f"what or fix: no pattern has the group {error}") from error
        return self

    @property
    def compound(self) -> bool:
        """Whether the whole file has a say in it."""
        return bool(self.also or self.unless or self.differ)

    def filled(self, template: str, values: dict[str, str]) -> str:
        """``template`` with the named groups put in; a group that matched nothing is ``?``."""
        return template.format_map(_OrUnknown(values))


class _OrUnknown(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


class _Pack(_Part):
    layer: Literal["MUSA", "MCCL", "Ray", "SGLang", "Megatron", "verl", "Python", "OS"]
    rules: tuple[Rule, ...]


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> Any:
    """A pattern over bytes; text that is no UTF-8 must not stop it."""
    try:
        return re2.compile(f"(?m){pattern}".encode(), _options())
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"{pattern!r} is no pattern of RE2: {error}") from error


def _groups(pattern: str) -> list[str]:
    return [_text(name) for name in _compile(pattern).groupindex]


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _options() -> Any:
    options = re2.Options()
    options.max_mem = MEMORY
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    return options


def literal(pattern: str) -> str:
    """The longest text that is in whatever ``pattern`` matches: a file is searched for those before any pattern is tried.

    Raises:
        ValueError: there is none of at least four characters.
    """
    best, run, depth = "", "", 0
    for piece, following in pairwise([*_pieces(pattern.removeprefix("(?i)")), ""]):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            raise ValueError(f"{pattern!r}: write the two sides of | as two patterns")
        plain = piece[-1] if piece not in _SPECIAL and (len(piece) == 1 or _escaped(piece)) else ""
        run = run + plain if plain and depth == 0 and following not in {"*", "?", "{"} else ""
        best = max(best, run, key=len)
    if len(best) < LEAST_LITERAL:
        raise ValueError(
            f"{pattern!r}: no {LEAST_LITERAL} plain characters in a row outside of groups, by which a file could be searched"
        )
    return best


_SPECIAL = set(".^$*+?{}|()")


def _escaped(piece: str) -> bool:
    """Whether a piece stands for the character after its backslash."""
    return len(piece) == len("\\.") and piece[0] == "\\" and not piece[1].isalnum()


def _pieces(pattern: str) -> Iterator[str]:
    """The characters of a pattern; an escape, a class and the numbers of a repetition are one piece each."""
    index = 0
    while index < len(pattern):
        char, end = pattern[index], index + 1
        if char == "\\":
            end = index + 2
        elif char == "[":
            end = _after_class(pattern, index) + 1
        elif char == "{":
            end = pattern.index("}", index) + 1
        yield "{" if char == "{" else pattern[index:end]
        index = end


def _after_class(pattern: str, index: int) -> int:
    index += 2 if pattern[index + 1 : index + 2] == "^" else 1
    if pattern[index : index + 1] == "]":
        index += 1
    while pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index


@dataclass(frozen=True, slots=True)
class Match:
    """A rule in a text, and its named groups."""

    rule: Rule
    values: dict[str, str]


class Rules:
    """A pack, ready to be searched with."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = sorted(rules, key=lambda rule: (-rule.priority, rule.kind != "cause", rule.id))
        self._set = re2.Set.SearchSet(_options())
        self._owner: list[tuple[Rule, str, str]] = []
        for rule in self.rules:
            for role in ("match", "also", "unless"):
                for pattern in getattr(rule, role):
                    self._set.Add(f"(?m){pattern}".encode())
                    self._owner.append((rule, role, pattern))
        self._set.Compile()

    def literals(self) -> list[tuple[str, bool]]:
        """The texts to search a file for, each with whether its case does not matter."""
        return sorted({(literal(pattern), pattern.startswith("(?i)")) for _, _, pattern in self._owner})

    def matches(self, text: str) -> list[tuple[Rule, str, str]]:
        """Which patterns are in ``text``: the rule, ``match``, ``also`` or ``unless``, and the pattern."""
        return [
            self._owner[index] for index in sorted(self._set.Match(text.encode("utf-8", "replace")) or ())
        ]


def values(pattern: str, text: str) -> dict[str, str]:
    """The named groups of ``pattern`` in ``text``."""
    found = _compile(pattern).search(text.encode("utf-8", "replace"))
    if found is None:
        return {}
    return {_text(name): _text(value)[:200] for name, value in found.groupdict().items() if value is not None}


def load_rules(folder: Path = RULES) -> Rules:
    """Every ``*.yaml`` of ``folder``.

    Raises:
        TriageRulesError: a file is missing or wrong; it says where.
    """
    rules: dict[str, Rule] = {}
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise TriageRulesError(
            "no rule pack", where=str(folder), expected="*.yaml", fix="reinstall verl-musa"
        )
    for path in files:
        for rule in _read(path):
            if rule.id in rules:
                raise TriageRulesError(
                    f"{rule.id} is there twice", where=str(path), fix="rename one of the two"
                )
            rules[rule.id] = rule
    return Rules(rules.values())


@lru_cache(maxsize=1)
def shipped_rules() -> Rules:
    """The pack of this package, loaded once."""
    return load_rules()


def _read(path: Path) -> list[Rule]:
    try:
        text = path.read_text(encoding="utf-8")
        value = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (both are safe loaders)
    except (OSError, ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise TriageRulesError("this file of rules cannot be read", where=where, found=str(error)) from error
    try:
        pack = _Pack.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        line = _line_of(text, first["loc"])
        raise TriageRulesError(
            first["msg"],
            where=f"{path}:{line}",
            found=".".join(map(str, first["loc"])),
            expected="docs/triage.md describes the fields of a rule",
        ) from error
    return [rule.model_copy(update={"layer": pack.layer}) for rule in pack.rules]


def _line_of(text: str, loc: Sequence[int | str]) -> int:
    """The line of the YAML node that ``loc`` leads to, as far as it exists."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 1
    for part in loc:
        following = None
        if isinstance(node, yaml.MappingNode):
            following = next((value for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            following = node.value[part]
        if following is None:
            break
        node = following
        line = node.start_mark.line + 1
    return line
