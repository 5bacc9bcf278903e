"""Hydra overrides as values: keys as on verl's command line, values as data, one spelling for both."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_musa.errors import RecipeError
from verl_musa.recipe._yaml import Document, parse_value
from verl_musa.recipe.validation import describe

_KEY = re.compile(r"^(\+\+|\+|~)?([A-Za-z_$][\w$@/:-]*(?:\.[\w$-]+)*)$")
_ESCAPED = re.compile(r"([\\(){}\[\]:=, \t])")


@dataclass(frozen=True)
class Override:
    """One override.

    Attributes:
        key: as on verl's command line, with its ``+``, ``++`` or ``~``.
        value: None, bool, int, float, str, list or dict; never a Hydra sweep.
        origin: ``file:line``, ``--set``, or ``recipe.yaml:line`` for what the recipe derives.
        forced: written by the recipe itself: no type check against verl's default.
    """

    key: str
    value: Any
    origin: str
    forced: bool = field(default=False, repr=False)

    @property
    def path(self) -> str:
        """The key without its sign."""
        return self.key.lstrip("+~")

    @property
    def sign(self) -> str:
        """``""``, ``"+"``, ``"++"`` or ``"~"``."""
        return self.key[: len(self.key) - len(self.path)]

    @property
    def is_group(self) -> bool:
        """Whether the key can only name a Hydra config group (``group/name`` or ``group@package``)."""
        return "@" in self.path or "/" in self.path

    @property
    def text(self) -> str:
        """The argument as Hydra's command line takes it; quoted so that the parsed value equals ``value``.

        Raises:
            RecipeError: a dict key that Hydra's grammar cannot spell.
        """
        if self.sign == "~":
            return self.key
        text = f"{self.key}={self.value if self.is_group and isinstance(self.value, str) else hydra_value(self.value)}"
        if not self.is_group and not _same(_parsed(text), self.value):
            raise RecipeError(
                f"the value of {self.key!r} cannot be written as a Hydra override",
                where=self.origin,
                found=describe(self.value),
                expected="mapping keys of letters, digits and _ - . /",
                fix="rename the mapping key",
            )
        return text


def hydra_value(value: Any) -> str:
    """``value`` in Hydra's override grammar. Text is always quoted, so that ``'1e-6'`` and ``'null'`` stay text."""
    from hydra.core.override_parser.types import Quote, QuotedString

    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return str(QuotedString(value, Quote.single).with_quotes())
        case list() | tuple():
            return "[" + ",".join(hydra_value(item) for item in value) + "]"
        case dict():
            return (
                "{" + ",".join(f"{_hydra_key(key)}:{hydra_value(item)}" for key, item in value.items()) + "}"
            )
    raise TypeError(f"no Hydra spelling for {type(value).__name__}")


def _hydra_key(key: str) -> str:
    return _ESCAPED.sub(r"\\\1", key)


def _parsed(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text).value()
    except HydraException:
        return _UNPARSED


_UNPARSED = object()


def _same(left: Any, right: Any) -> bool:
    """Equality that tells True from 1 and 1 from 1.0, and takes NaN as equal to itself."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and (left == right or repr(left) == repr(right))


def parse_key(key: str, origin: str) -> str:
    """Check the shape of an override key.

    Raises:
        RecipeError: not a Hydra key.
    """
    if _KEY.match(key) is None:
        raise RecipeError(
            f"{key!r} is not an override key",
            where=origin,
            found=repr(key),
            expected="dotted names such as actor_rollout_ref.actor.optim.lr, with a leading + for a new key",
            fix="write the key as on verl's command line",
        )
    return key


def overrides_from(document: Document) -> list[Override]:
    """The overrides of a ``config.yaml``: one flat mapping of Hydra keys.

    Raises:
        RecipeError: not a mapping, a key that is not an override key, or one key with two signs.
    """
    if document.value is None:
        return []
    if not isinstance(document.value, dict):
        raise RecipeError(
            "config.yaml must hold a mapping of verl's override keys",
            where=document.where(),
            found=describe(document.value),
            expected="lines such as 'data.train_batch_size: 8'",
            fix="write one override a line",
        )
    found: dict[str, Override] = {}
    for key, value in document.value.items():
        origin = document.where((key,))
        override = Override(parse_key(key, origin), value, origin)
        earlier = found.get(override.path)
        if earlier is not None:
            raise RecipeError(
                f"{override.path} is set twice, as {earlier.key!r} and {key!r}",
                where=origin,
                found=f"first at {earlier.origin}",
                expected="each key once",
                fix="remove one of the two lines",
            )
        found[override.path] = override
    return list(found.values())


def overrides_from_sets(sets: Sequence[str]) -> list[Override]:
    """The overrides of ``--set key=value`` options; the value is read as YAML, by the rules of ``config.yaml``.

    Raises:
        RecipeError: no ``=``, a bad key, a value that is not YAML, or a key given twice.
    """
    found: dict[str, Override] = {}
    for text in sets:
        key, separator, value = text.partition("=")
        origin = f"--set {text}"
        if key.startswith("~"):
            separator = separator or "="
        if not separator:
            raise RecipeError(
                "--set needs key=value",
                where=origin,
                found=repr(text),
                expected="for example --set trainer.total_training_steps=4",
                fix="add '=' and a value",
            )
        override = Override(parse_key(key.strip(), origin), parse_value(value, origin), origin)
        if override.path in found:
            raise RecipeError(
                f"{override.path} is set twice on the command line",
                where=origin,
                found=found[override.path].origin,
                expected="each key once",
                fix="remove one of the two options",
            )
        found[override.path] = override
    return list(found.values())


def layer(lower: Iterable[Override], upper: Iterable[Override]) -> list[Override]:
    """``lower`` followed by ``upper``; an override of ``upper`` replaces one of ``lower`` with the same path.

    The sign of a replaced ``+key`` carries over, so that ``--set key=value`` also works for a key that the recipe added.
    """
    result = {override.path: override for override in lower}
    for override in upper:
        replaced = result.pop(override.path, None)
        if replaced is not None and override.sign == "" and replaced.sign in {"+", "++"}:
            override = Override(replaced.key, override.value, override.origin)  # noqa: PLW2901
        result[override.path] = override
    return list(result.values())


def close_keys(path: str, known: Iterable[str]) -> list[str]:
    """Up to three keys of ``known`` that look like ``path``: by spelling, else by the same last name."""
    known = list(known)
    close = difflib.get_close_matches(path, known, n=3, cutoff=0.7)
    last = path.rpartition(".")[2]
    return close or [key for key in known if key.rpartition(".")[2] == last][:3]
