"""YAML: keys written twice, variables that render empty or not at all, secrets, paths and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from verl_musa.lint import rules, texts
from verl_musa.lint.model import Analysis, Comment, Finding, Rule, Source
from verl_musa.lint.words import word_set

_ENVIRONMENTS: Final = frozenset({"env_vars", "env", "environment", "envs"})
_RAY: Final = "env_vars"
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EMPTY_ON_PURPOSE: Final = re.compile(
    r"\w*VISIBLE_DEVICES|(?:\w*_)?(?:no_)?proxy|\w*_PROXY|XLA_FLAGS|PYTHONSTARTUP", re.IGNORECASE
)
_EMPTY_DEFAULT: Final = re.compile(r"\$\{oc\.env:\s*(\w+)\s*,\s*(?:''|\"\")?\s*\}|\$\{([A-Za-z_]\w*):?-\}")
_SHELL_VARIABLE: Final = re.compile(r"(?<!\$)\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_FOR_PEOPLE: Final = word_set(
    "description summary help title doc docs message reason prompt comment note notes why label name"
)
_IN_CONTAINER: Final = word_set(
    "mountpath mount_path containerpath container_path target workingdir working_directory"
)
_PATH_KEY: Final = re.compile(
    r"(?:path|paths|dir|dirs|directory|folder|file|files|root|home|ckpt|checkpoint|cache|shared)$",
    re.IGNORECASE,
)
_ROUTE_KEY: Final = re.compile(r"url|uri|route|endpoint|api|prefix|httpget", re.IGNORECASE)
_TEMPLATE: Final = re.compile(r"\{\{|\{%")


def analyse(source: Source) -> Analysis:
    """Read one YAML file.

    Raises:
        yaml.YAMLError: it is none, or a template of one.
    """
    findings: list[Finding] = []
    covered: set[int] = set()
    for document in yaml.compose_all(source.text, Loader=yaml.SafeLoader):
        if document is not None:
            reader = _Reader(source)
            findings += reader.read(document)
            covered |= reader.covered
    return Analysis(findings, list(_comments(source, covered)))


def is_template(text: str) -> bool:
    """Whether a file that is no YAML is a template that renders to some."""
    return bool(_TEMPLATE.search(text))


def _comments(source: Source, covered: set[int]) -> Iterator[Comment]:
    for number, line in enumerate(source.lines, start=1):
        found = re.search(r"(?:^|\s)(#.*)", line)
        if found and number not in covered:
            yield Comment(number, found[1], not line[: found.start()].strip())


class _Reader:
    """One walk over one document.

    Attributes:
        covered: lines that belong to the text of a value, where a ``#`` starts no comment.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen: set[int] = set()
        self.covered: set[int] = set()

    def read(self, node: yaml.Node, keys: tuple[str, ...] = ()) -> Iterator[Finding]:
        """Findings at and below ``node``, which stands under ``keys``."""
        if id(node) in self._seen:  # an alias
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield from self._mapping(node, keys)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from self.read(item, keys)
        elif isinstance(node, yaml.ScalarNode):
            yield from self._scalar(node, keys)

    def _mapping(self, node: yaml.MappingNode, keys: tuple[str, ...]) -> Iterator[Finding]:
        first: dict[str, int] = {}
        for key_node, value in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else ""
            line = key_node.start_mark.line + 1
            if key and key != "<<" and key in first:
                yield self._finding(
                    rules.YAML_DUPLICATE, key_node, f"{key!r} again; first on line {first[key]}"
                )
            first.setdefault(key, line)
            yield from self.read(value, (*keys, key))

    def _scalar(self, node: yaml.ScalarNode, keys: tuple[str, ...]) -> Iterator[Finding]:
        text, key = str(node.value), keys[-1] if keys else ""
        last = node.end_mark.line + (1 if node.end_mark.column else 0)
        self.covered.update(range(node.start_mark.line + 2, last + 1))
        if len(keys) > 1 and keys[-2] in _ENVIRONMENTS and _VARIABLE_NAME.fullmatch(key):
            yield from self._variable(node, key, text, ray=keys[-2] == _RAY)
        elif key in _ENVIRONMENTS and "=" in text:  # - NAME=value
            name, _, value = text.partition("=")
            yield from self._variable(node, name, value, ray=False)
        else:
            yield from self._setting(node, key, text)
        yield from self._empty_default(node, text)
        yield from self._places(node, key.rpartition(".")[2], text)

    def _variable(self, node: yaml.ScalarNode, name: str, value: str, *, ray: bool) -> Iterator[Finding]:
        """One variable of an environment."""
        null = node.tag.endswith(":null")
        if (not value.strip() or null) and not _EMPTY_ON_PURPOSE.fullmatch(name):
            yield self._finding(rules.YAML_EMPTY, node, f"{name} is empty")
        used = [one or other for one, other in _SHELL_VARIABLE.findall(value)]
        if name in used:
            message = f"{name} refers to itself: {value!r}"
            if ray:
                message += "; Ray expands it on each worker, from what that node's Ray was started with"
            yield self._finding(rules.YAML_SELF_REFERENCE, node, message)
        elif used and ray:
            message = f"{name}={value!r}: where the node's Ray lacks ${used[0]}, it is left as written or becomes empty"
            yield self._finding(rules.YAML_UNEXPANDED, node, message)
        yield from self._setting(node, name, value)

    def _setting(self, node: yaml.ScalarNode, name: str, value: str) -> Iterator[Finding]:
        if name:
            yield from texts.setting_findings(self._source, name, value, *self._at(node))

    def _empty_default(self, node: yaml.ScalarNode, text: str) -> Iterator[Finding]:
        for found in _EMPTY_DEFAULT.finditer(text):
            yield self._finding(
                rules.YAML_EMPTY, node, f"{found[0]} is empty where {found[1] or found[2]} is not set"
            )

    def _places(self, node: yaml.ScalarNode, key: str, text: str) -> Iterator[Finding]:
        if key in _FOR_PEOPLE and re.search(r"\s", text):
            return
        if key == "volumes":
            text = text.partition(":")[0]  # what follows is a path in the container
        line, column = self._at(node)
        line += node.style in ("|", ">")
        if key.lower() not in _IN_CONTAINER:
            used = bool(_PATH_KEY.search(key)) and not _ROUTE_KEY.search(key)
            yield from texts.path_findings(
                self._source, text, line, column, statement=line, used_as_path=used
            )
        if "version" not in key.lower():
            yield from texts.address_findings(self._source, text, line, column)

    @staticmethod
    def _at(node: yaml.Node) -> tuple[int, int]:
        return node.start_mark.line + 1, node.start_mark.column + 1

    def _finding(self, rule: Rule, node: yaml.Node, message: str) -> Finding:
        return self._source.finding(rule, *self._at(node), message)
