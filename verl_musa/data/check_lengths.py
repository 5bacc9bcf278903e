"""Lengths of prompts in tokens, after the chat template, counted as verl counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.data.check_tally import Tally
from verl_musa.errors import DataError

_HISTOGRAM_LIMIT = 1 << 20
"""Prompts of more tokens than that count as that many."""


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder.

    Raises:
        DataError: there is none, or it has no chat template.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise DataError(
            "transformers is not installed here",
            expected="the package, which the image brings",
            fix="run this in the image, or leave the tokenizer out",
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (
        Exception
    ) as error:  # transformers raises OSError, ValueError, KeyError and its parsers' own for broken files
        raise DataError(
            "no usable tokenizer",
            where=str(folder),
            found=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            expected="a model folder in Hugging Face layout",
            fix="name the folder of the model",
        ) from error
    if not tokenizer.chat_template:
        raise DataError(
            "the tokenizer has no chat template", where=str(folder), fix="name the folder of a chat model"
        )
    return tokenizer


@dataclass
class Lengths:
    """Counts tokens.

    Attributes:
        tokenizer: with a chat template.
        limit: ``data.max_prompt_length``; None: nothing is over-long.
        template: the template's arguments, ``data.apply_chat_template_kwargs``.
    """

    tokenizer: Any
    limit: int | None = None
    template: dict[str, Any] = field(default_factory=dict)
    over: Tally = field(default_factory=Tally)
    refused: Tally = field(default_factory=Tally)
    rows: int = 0
    histogram: dict[int, int] = field(default_factory=dict)

    def look(self, file: Path, numbers: Sequence[int], chats: Sequence[list[dict[str, Any]]]) -> list[int]:
        """Count the tokens of some prompts of a file; -1 for one that the template refuses."""
        counts = self._count(chats)
        for number, (count, said) in zip(numbers, counts, strict=True):
            self.rows += 1
            if count < 0:
                self.refused.add(file, number, f"the chat template refuses it: {said}")
                continue
            bin_ = min(count, _HISTOGRAM_LIMIT)
            self.histogram[bin_] = self.histogram.get(bin_, 0) + 1
            if self.limit is not None and count > self.limit:
                self.over.add(file, number, f"has {count:,} tokens")
        return [count for count, _ in counts]

    def _count(self, chats: Sequence[list[dict[str, Any]]]) -> list[tuple[int, str]]:
        """(tokens, what the template said) of each; all at once unless the template refuses one."""
        if not chats:
            return []
        try:
            return [(count, "") for count in self._tokens(chats)]
        except Exception as error:  # noqa: BLE001  (a template raises whatever it likes)
            if len(chats) == 1:
                return [(-1, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")]
            middle = len(chats) // 2
            return self._count(chats[:middle]) + self._count(chats[middle:])

    def _tokens(self, chats: Sequence[list[dict[str, Any]]]) -> list[int]:
        encoded = self.tokenizer(self._texts(chats), add_special_tokens=False, return_attention_mask=False)
        return [len(ids) for ids in encoded["input_ids"]]

    def _texts(self, chats: Sequence[list[dict[str, Any]]]) -> list[str]:
        ours = {"tokenize", "return_dict", "return_tensors"}
        arguments = {name: value for name, value in self.template.items() if name not in ours}
        texts: list[str] = self.tokenizer.apply_chat_template(
            list(chats), add_generation_prompt=True, tokenize=False, **arguments
        )
        return texts

    def render(self, chat: list[dict[str, Any]]) -> str:
        """The prompt as the model reads it; what the template said where it refuses it."""
        try:
            return self._texts([chat])[0]
        except Exception as error:  # noqa: BLE001  (a template raises whatever it likes)
            return f"(the chat template refuses it: {type(error).__name__}: {error})"

    def quantile(self, share: float) -> int:
        """The length that ``share`` of the prompts do not exceed; 0 where there are none."""
        wanted, seen = share * sum(self.histogram.values()), 0
        for length in sorted(self.histogram):
            seen += self.histogram[length]
            if seen >= wanted:
                return length
        return 0
