r"""From any row to a row in verl's layout: which column is the prompt, which the answer, and what is put around them.

A mapping of one's own, ``mapping.yaml``::

    schema: 1
    prompt: question                # a column of text or of messages; dots reach into structs
    ground_truth: answer            # a column of text or numbers
    extract: gsm8k                  # none | gsm8k (after ####) | boxed
    data_source: my/data            # what the reward function is told
    suffix: "\nPut the final answer in \\boxed{}."
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from verl_musa.errors import DataError

Name = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\n\r\x00]+$")]
ROLES = ("system", "user", "assistant", "tool")


def _one_group(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if groups != 1:
        raise ValueError("must have exactly one group, which is the question")
    return pattern


class Mapping(BaseModel):
    """How rows become prompts with a ground truth."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    prompt: Name
    """Column with the question as text, or with messages as a list of {role, content} (also as JSON text)."""

    ground_truth: Name
    """Column with the right answer."""

    extract: Literal["none", "gsm8k", "boxed"] = "none"
    """How the answer is taken out of that column."""

    question: Annotated[str, AfterValidator(_one_group)] | None = None
    """Regular expression whose one group is the question inside the text; text that does not match is taken whole."""

    system: str | None = None
    """A system message to begin with."""

    prefix: str = ""
    """Put before the user's last message."""

    suffix: str = ""
    """Put after the user's last message."""

    data_source: Name
    """Text for verl's column of that name; the reward function and the validation metrics get it."""

    ability: Name = "math"
    """Text for verl's column of that name."""

    keep: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """Columns that go into extra_info, as text."""

    def columns(self) -> list[str]:
        """The columns that a row must have."""
        return [self.prompt, self.ground_truth, *self.keep]


def load_mapping(path: Path) -> Mapping:
    """Read a ``mapping.yaml``.

    Raises:
        DataError: it cannot be read, or is not in this form.
    """
    import yaml

    try:
        return Mapping.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"cannot read the mapping: {error.strerror}", where=str(path)) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise DataError(
            "this is not valid YAML",
            where=f"{path}:{mark.line + 1}" if mark else str(path),
            found=str(getattr(error, "problem", error)),
            fix="correct the line",
        ) from error
    except ValidationError as error:
        raise mapping_error(error, str(path)) from error


def mapping_error(error: ValidationError, where: str) -> DataError:
    """The first thing that is wrong with a mapping."""
    first = error.errors()[0]
    return DataError(
        "a mapping in another form",
        where=where,
        found=f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}",
        expected="prompt, ground_truth and data_source, as docs/data.md shows",
        fix="correct that field",
    )


class RowError(Exception):
    """A row that cannot be mapped; the message says what was found."""


def column(row: dict[str, Any], name: str) -> Any:
    """``row[name]``; where there is none, dots reach into structs.

    Raises:
        RowError: no such column.
    """
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise RowError(f"no column {name!r}; the row has {', '.join(map(str, row))}")
        value = value[part]
    return value


def has_columns(row: dict[str, Any], mapping: Mapping) -> bool:
    """Whether ``row`` has every column that ``mapping`` reads."""
    try:
        for name in mapping.columns():
            column(row, name)
    except RowError:
        return False
    return True


class Mapper:
    """Applies one mapping to many rows."""

    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping
        self._question = re.compile(mapping.question) if mapping.question else None

    def messages(self, row: dict[str, Any]) -> list[tuple[str, str]]:
        """The prompt as (role, content) pairs.

        Raises:
            RowError: it is none.
        """
        found = _messages(column(row, self.mapping.prompt), self.mapping.prompt)
        role, text = found[-1]
        if role != "user":
            raise RowError(f"the last message of {self.mapping.prompt!r} is from {role!r}, not from 'user'")
        match = self._question.search(text) if self._question else None
        text = (match.group(1) if match else text).strip()
        if not text:
            raise RowError(f"{self.mapping.prompt!r} is empty")
        found[-1] = (role, f"{self.mapping.prefix}{text}{self.mapping.suffix}")
        if self.mapping.system is not None and found[0][0] != "system":
            found.insert(0, ("system", self.mapping.system))
        return found

    def ground_truth(self, row: dict[str, Any]) -> str:
        """The right answer.

        Raises:
            RowError: there is none.
        """
        text = _scalar(column(row, self.mapping.ground_truth), self.mapping.ground_truth)
        found = _EXTRACTORS[self.mapping.extract](text)
        if not found:
            kind = "" if self.mapping.extract == "none" else f" in the form {self.mapping.extract!r}"
            raise RowError(f"{self.mapping.ground_truth!r} has no answer{kind}: {text[-80:]!r}")
        return found

    def kept(self, row: dict[str, Any]) -> list[str | None]:
        """The columns for extra_info, as text.

        Raises:
            RowError: one is missing.
        """
        values = (column(row, name) for name in self.mapping.keep)
        return [
            value
            if value is None or isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, default=str)
            for value in values
        ]


def _messages(value: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(value, str):
        if value.lstrip().startswith("[{") and '"role"' in value:
            try:
                return _messages(json.loads(value), name)
            except ValueError:
                return [("user", value)]
        return [("user", value)]
    if not isinstance(value, list) or not value:
        raise RowError(f"{name!r} is {_short(value)}, neither text nor messages")
    found = []
    for index, message in enumerate(value):
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in ROLES or not isinstance(content, str):
            raise RowError(f"{name}[{index}] is {_short(message)}, no {{role, content}}")
        found.append((str(role), content))
    return found


def _scalar(value: Any, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(f"{name!r} is {_short(value)}, neither text nor a number")
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value).strip()


def _short(value: Any) -> str:
    return repr(value)[:80]


_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"-?\$?-?[\d,]*\.?\d+")


def _after_hashes(text: str) -> str:
    """``#### 1,234`` as ``1234``; empty where it is missing or holds no number."""
    _, mark, answer = text.rpartition("####")
    answer = answer.strip()
    if not mark or not _NUMBER.fullmatch(answer):
        return ""
    return _THOUSANDS.sub("", answer).replace("$", "")


def _in_box(text: str) -> str:
    from verl_musa.reward.answer import last_box

    return (last_box(text) or "").strip()


_EXTRACTORS: dict[str, Callable[[str], str]] = {"none": str.strip, "gsm8k": _after_hashes, "boxed": _in_box}
