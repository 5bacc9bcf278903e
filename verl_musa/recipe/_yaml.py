"""YAML with line numbers, unique keys and Hydra's own idea of what a number is.

PyYAML follows YAML 1.1, where ``1e-6`` is a string, ``010`` is eight and ``no`` is a boolean. A recipe's values end
up as Hydra overrides, so scalars are read by the rules of Hydra's command line instead: a value means the same
whether it stands in ``config.yaml`` or after ``--set``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from verl_musa.errors import RecipeError

Location = tuple[str | int, ...]

MAX_BYTES = 4 * 2**20
"""A recipe is written by hand; anything larger is a data file named by mistake."""

_STR, _INT, _FLOAT, _BOOL, _NULL = (
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null")
)
_UNSIGNED = r"(?:0|[1-9](?:_?[0-9])*)"
_DIGITS = r"[0-9](?:_?[0-9])*"
_POINT = rf"(?:{_UNSIGNED}\.(?:{_DIGITS})?|\.{_DIGITS})"
_RESOLVERS: tuple[tuple[str, str, list[str]], ...] = (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, rf"[-+]?{_UNSIGNED}", list("-+0123456789")),
    (
        _FLOAT,
        rf"[-+]?(?:{_POINT}|(?:{_POINT}|{_UNSIGNED})[eE][-+]?{_DIGITS}|\.?(?:inf|Inf|INF))|\.?(?:nan|NaN|NAN)",
        list("-+.0123456789iInN"),
    ),
)


class _Loader(yaml.SafeLoader):
    """Composes nodes only; the implicit resolvers are Hydra's and aliases are refused."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (PyYAML's own class attribute, replaced, not shared)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not supported", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)


for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, kw_only=True)
class Document:
    """One parsed file: its value and the line of every key and item.

    Attributes:
        path: the file, as it is named in messages.
        value: dicts, lists and scalars.
        lines: location (keys and list indices from the root) -> 1-based line of its key or item.
        overlaid: location -> ``file:line``, for what another file laid over this one.
    """

    path: Path
    value: Any
    lines: dict[Location, int] = field(repr=False)
    overlaid: dict[Location, str] = field(default_factory=dict, repr=False)

    def where(self, location: Location = ()) -> str:
        """``file:line`` of ``location``, or of the nearest enclosing key that exists."""
        for length in range(len(location), -1, -1):
            if location[:length] in self.overlaid:
                return self.overlaid[location[:length]]
            line = self.lines.get(location[:length])
            if line is not None:
                return f"{self.path}:{line}"
        return str(self.path)

    def overlay(self, other: Document, root: Location = ()) -> Document:
        """This document with the mapping at ``root`` of ``other`` merged over it: mappings key by key, all else whole.

        Messages about a value name the file that it came from.
        """
        node = other.value
        for part in root:
            node = node[part]
        overlaid = dict(self.overlaid)

        def merge(lower: Any, upper: Any, location: Location) -> Any:
            if isinstance(lower, dict) and isinstance(upper, dict):
                merged = dict(lower)
                for key, value in upper.items():
                    merged[key] = merge(lower.get(key), value, (*location, key))
                return merged
            for inner in [known for known in overlaid if known[: len(location)] == location]:
                del overlaid[inner]
            for inner in other.lines:
                if inner[: len(root) + len(location)] == (*root, *location):
                    overlaid[inner[len(root) :]] = other.where(inner)
            return upper

        return Document(
            path=self.path, value=merge(self.value, node, ()), lines=self.lines, overlaid=overlaid
        )


def read_document(path: Path) -> Document:
    """Parse the YAML file at ``path``.

    Raises:
        RecipeError: unreadable, not UTF-8, not YAML, or with a key written twice in one mapping.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecipeError(
            "cannot read this file",
            where=str(path),
            found=error.strerror or str(error),
            expected="a readable YAML file",
            fix="check the path and its permissions",
        ) from error
    if len(raw) > MAX_BYTES:
        raise RecipeError(
            "file too large for a recipe",
            where=str(path),
            found=f"{len(raw):,} bytes",
            expected=f"at most {MAX_BYTES:,} bytes",
            fix="put data in its own file and name it by path",
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise RecipeError(
            "not UTF-8 text",
            where=f"{path}:{line}",
            found=f"byte 0x{raw[error.start]:02x}",
            expected="UTF-8",
            fix="save the file as UTF-8",
        ) from error
    return parse_document(text, path)


def parse_document(text: str, path: Path) -> Document:
    """Parse YAML ``text`` as though read from ``path``.

    Raises:
        RecipeError: as for :func:`read_document`.
    """
    lines: dict[Location, int] = {(): 1}
    try:
        node = _compose(text)
        value = None if node is None else _construct(node, (), lines, path)
    except yaml.YAMLError as error:
        raise _syntax_error(error, path) from error
    except RecursionError as error:
        raise RecipeError("nested too deeply", where=str(path), fix="flatten the mapping") from error
    return Document(path=path, value=value, lines=lines)


def parse_value(text: str, origin: str) -> Any:
    """Parse one YAML value, as written after ``--set key=``; ``origin`` names it in messages."""
    if text.lstrip().startswith("#"):
        raise RecipeError(
            "a value that starts with '#' reads as a comment",
            where=origin,
            found=text,
            expected="a value",
            fix="quote it for YAML too, for example --set \"key='#x'\"",
        )
    try:
        return parse_document(text, Path(origin)).value
    except RecipeError as error:
        error.where = origin  # a line number within one option would only confuse
        raise


def _compose(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _syntax_error(error: yaml.YAMLError, path: Path) -> RecipeError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = f":{mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
    return RecipeError(
        "this is not valid YAML",
        where=f"{path}{line}",
        found=problem,
        expected="one YAML document",
        fix="correct the line; quote text that holds ': ', '#', '{', '[', '*', '&' or '%'",
    )


def _construct(node: yaml.Node, location: Location, lines: dict[Location, int], path: Path) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, location, lines, path)
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[(*location, index)] = item.start_mark.line + 1
            items.append(_construct(item, (*location, index), lines, path))
        return items
    return _scalar(node, path)


def _mapping(
    node: yaml.MappingNode, location: Location, lines: dict[Location, int], path: Path
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise RecipeError(
                "a key must be plain text",
                where=f"{path}:{line}",
                found="a list or mapping as a key",
                expected="text",
                fix="quote the key",
            )
        key = str(key_node.value)
        here = (*location, key)
        if key in result:
            raise RecipeError(
                f"key {key!r} is written twice",
                where=f"{path}:{line}",
                found=f"first at line {lines[here]}, again at line {line}",
                expected="each key once",
                fix="remove one of the two lines",
            )
        lines[here] = line
        result[key] = _construct(value_node, here, lines, path)
    return result


def _scalar(node: yaml.Node, path: Path) -> str | int | float | bool | None:
    text = str(node.value)
    patterns = {tag: pattern for tag, pattern, _ in _RESOLVERS}
    if node.tag == _STR:
        return text
    # An explicit tag such as `!!int x` bypasses the resolvers, hence the second look.
    if node.tag in patterns and re.fullmatch(patterns[node.tag], text):
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL:
            return text.lower() == "true"
        return (
            int(text)
            if node.tag == _INT
            else float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        )
    raise RecipeError(
        "this value cannot be read",
        where=f"{path}:{node.start_mark.line + 1}",
        found=f"{node.tag.removeprefix('tag:yaml.org,2002:')} {text!r}",
        expected="text, a number, true, false, null, a list or a mapping",
        fix="drop the tag, or quote the value",
    )
