"""What every row is looked at for, without its tokenizer and its reward."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.data.check_tally import Tally
from verl_musa.data.check_text import HARD, text_fault
from verl_musa.data.digests import digest
from verl_musa.data.parquet import LAST_ROLES, ROLES

UNREADABLE = "not UTF-8"


@dataclass
class Rows:
    """Faults by kind, and what is kept of each row to compare it with the others.

    Attributes:
        prompt_key: column of the prompt.
        source_key: column of the data source.
    """

    prompt_key: str = "prompt"
    source_key: str = "data_source"
    rows: int = 0
    prompt: Tally = field(default_factory=Tally)
    roles: Tally = field(default_factory=Tally)
    empty: Tally = field(default_factory=Tally)
    truth: Tally = field(default_factory=Tally)
    broken_text: Tally = field(default_factory=Tally)
    odd_text: Tally = field(default_factory=Tally)
    kinds: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    styles: Counter[str] = field(default_factory=Counter)

    def look(self, file: Path, number: int, row: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Look at one row; its messages where they can be put through a chat template, else None."""
        self.rows += 1
        self._look_at_truth(file, number, row)
        messages: Any = row.get(self.prompt_key)
        problem = _prompt_problem(messages)
        if problem:
            self.prompt.add(file, number, f"{self.prompt_key!r} {problem}")
            return None
        self._look_at_text(file, number, row)
        problem = _roles_problem(messages)
        if problem:
            self.roles.add(file, number, problem)
        blank = next((i for i, message in enumerate(messages) if not message["content"].strip()), None)
        if blank is not None:
            self.empty.add(file, number, f"{self.prompt_key}[{blank}] has no content")
        return messages if problem is None else None

    def unreadable(self, file: Path, number: int, found: str) -> None:
        """Count a row whose bytes are no text."""
        self.rows += 1
        self.kinds[UNREADABLE] += 1
        self.broken_text.add(file, number, found)

    def _look_at_truth(self, file: Path, number: int, row: dict[str, Any]) -> None:
        source = row.get(self.source_key)
        if isinstance(source, str) and source:
            self.sources[source] += 1
        else:
            self.empty.add(file, number, f"{self.source_key!r} is {source!r}")
        reward = row.get("reward_model")
        truth = reward.get("ground_truth") if isinstance(reward, dict) else None
        if isinstance(reward, dict):
            self.styles[str(reward.get("style"))] += 1
        if (
            truth is None
            or (isinstance(truth, str | list | dict) and not truth)
            or (isinstance(truth, str) and not truth.strip())
        ):
            self.truth.add(file, number, f"reward_model.ground_truth is {truth!r}")

    def _look_at_text(self, file: Path, number: int, row: dict[str, Any]) -> None:
        for text in _texts(row, self.prompt_key):
            fault = text_fault(text)
            if fault:
                kind, seen = fault
                self.kinds[kind] += 1
                tally = self.broken_text if kind in HARD else self.odd_text
                tally.add(file, number, f"{kind}: {seen}")
                return


def _texts(row: dict[str, Any], prompt_key: str) -> Iterator[str]:
    for message in row[prompt_key]:
        yield message["content"]
    truth = (row.get("reward_model") or {}).get("ground_truth")
    if isinstance(truth, str):
        yield truth


def _prompt_problem(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return f"is {_short(messages)}, not a list of messages"
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return f"[{index}] is {_short(message)}, no {{role, content}}"
    return None


def _roles_problem(messages: Sequence[dict[str, Any]]) -> str | None:
    roles = [message.get("role") for message in messages]
    unknown = next((role for role in roles if role not in ROLES), None)
    if unknown is not None or None in roles:
        return f"role {unknown!r}, expected one of {', '.join(ROLES)}"
    if roles[-1] not in LAST_ROLES:
        return f"the last message is from {roles[-1]!r}; an answer can follow {' or '.join(LAST_ROLES)} only"
    if "system" in roles[1:]:
        return f"a system message stands at {roles.index('system', 1)}; chat templates take it first only"
    if "user" not in roles:
        return "no message from 'user'"
    twice = next((i for i in range(1, len(roles)) if roles[i] == roles[i - 1] != "tool"), None)
    if twice is not None:
        return f"two messages from {roles[twice]!r} in a row, at {twice - 1}"
    return None


def _short(value: Any) -> str:
    return repr(value)[:80]


@dataclass
class Prompts:
    """A digest of each prompt, of its answer and of what the user asks, for all rows of one split: 58 bytes a row.

    Attributes:
        files: the split's files, in order.
    """

    files: list[Path] = field(default_factory=list)
    numbers: array[int] = field(default_factory=lambda: array("q"))
    of_file: array[int] = field(default_factory=lambda: array("H"))
    prompts: bytearray = field(default_factory=bytearray)
    truths: bytearray = field(default_factory=bytearray)
    questions: bytearray = field(default_factory=bytearray)

    def add(self, file: Path, number: int, messages: Sequence[dict[str, Any]], truth: Any) -> None:
        """Keep one row."""
        if not self.files or self.files[-1] != file:
            self.files.append(file)
        self.of_file.append(len(self.files) - 1)
        self.numbers.append(number)
        self.prompts += digest(
            part for message in messages for part in (str(message["role"]), message["content"])
        )
        self.truths += digest([str(truth)])
        # White space and case aside: a copy of a problem is seldom a copy of its bytes.
        self.questions += digest([" ".join(messages[-1]["content"].split()).casefold()])

    def place(self, index: int) -> tuple[Path, int]:
        """File and number of row ``index``."""
        return self.files[self.of_file[index]], self.numbers[index]

    def __len__(self) -> int:
        return len(self.numbers)
