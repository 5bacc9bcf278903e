"""The files of a data check, and the one pass over their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_musa.data.check_compare import duplicates, leaked
from verl_musa.data.check_lengths import Lengths, load_tokenizer
from verl_musa.data.check_reward import RewardFunction, Rewards
from verl_musa.data.check_rows import Prompts, Rows
from verl_musa.data.check_tally import FIRST, Tally
from verl_musa.data.parquet import one_line
from verl_musa.data.prepare_reading import read_batches
from verl_musa.data.subject import Subject
from verl_musa.errors import DataError
from verl_musa.recipe import Resolved

BATCH = 4096
"""Rows in memory at once."""

Progress = Callable[[int, int], None]
"""Called with (rows looked at, rows in all)."""


def _silent(*_: int) -> None:
    """Report nothing."""


@dataclass
class DataFiles:
    """What is checked, and against what.

    Attributes:
        train: files with training prompts.
        val: files with validation prompts.
        prompt_key: ``data.prompt_key``.
        source_key: ``data.reward_fn_key``.
        max_prompt_length: ``data.max_prompt_length``; None: not known.
        drops_long: ``data.filter_overlong_prompts``.
        truncation: ``data.truncation``.
        template: ``data.apply_chat_template_kwargs``.
        tokenizer: the model's folder; None: not known.
        chat_template: the recipe's own template instead of the folder's.
        reward: the recipe's reward function; None: not known.
        progress: told how far the rows are.
    """

    train: Sequence[Path]
    val: Sequence[Path] = ()
    prompt_key: str = "prompt"
    source_key: str = "data_source"
    max_prompt_length: int | None = None
    drops_long: bool = False
    truncation: str = "error"
    template: dict[str, Any] = field(default_factory=dict)
    tokenizer: Path | None = None
    chat_template: str | None = None
    reward: RewardFunction | None = None
    progress: Progress = _silent

    @property
    def files(self) -> list[Path]:
        """All files, training first."""
        return [*self.train, *self.val]

    @cached_property
    def readable(self) -> dict[Path, tuple[int, Any]]:
        """File -> (rows, arrow schema) of the parquet files that can be read, (0, None) of JSON files."""
        found: dict[Path, tuple[int, Any]] = {}
        for file in self.files:
            opened = open_file(file)
            if not isinstance(opened, str):
                found[file] = opened
        return found

    @cached_property
    def scan(self) -> Scan:
        """One pass over every row of the readable files."""
        return Scan(self).run()


def of_recipe(resolved: Resolved, files: Sequence[Path] = (), val: Sequence[Path] = ()) -> DataFiles:
    """What a recipe says about its data; ``files`` and ``val`` instead of its own, where any are given."""
    subject = Subject(resolved)
    length = subject.optional_integer("data.max_prompt_length")
    folder = subject.select("actor_rollout_ref.model.tokenizer_path") or subject.select(
        "actor_rollout_ref.model.path"
    )
    path = subject.select("reward.custom_reward_function.path")
    reward = None
    if path:
        reward = RewardFunction(
            Path(str(path)),
            str(subject.select("reward.custom_reward_function.name")),
            subject.select("reward.custom_reward_function.reward_kwargs", {}),
            bool(subject.select("reward.reward_model.enable")),
        )
    given = bool(files or val)
    return DataFiles(
        train=list(files) if given else subject.files("train"),
        val=list(val) if given else subject.files("val"),
        prompt_key=str(subject.select("data.prompt_key", "prompt")),
        source_key=str(subject.select("data.reward_fn_key", "data_source")),
        max_prompt_length=length,
        drops_long=bool(subject.select("data.filter_overlong_prompts")),
        truncation=str(subject.select("data.truncation", "error")),
        template=subject.select("data.apply_chat_template_kwargs", {}),
        tokenizer=Path(str(folder)) if folder else None,
        chat_template=subject.select("actor_rollout_ref.model.custom_chat_template"),
        reward=reward,
    )


def open_file(file: Path) -> tuple[int, Any] | str:
    """(rows, arrow schema) of a parquet file, (0, None) of a JSON file, or what is wrong with it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.is_file():
        return f"no file {file}"
    if file.suffix in {".json", ".jsonl"}:
        return 0, None
    if file.suffix != ".parquet":
        return f"{file.name}: verl reads .parquet, .json and .jsonl only"
    try:
        metadata = pq.read_metadata(file)
        return metadata.num_rows, metadata.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        return f"{file} cannot be read: {one_line(error)}"


class Scan:
    """What one pass over the rows found."""

    def __init__(self, files: DataFiles) -> None:
        self.files = files
        self.rows = Rows(files.prompt_key, files.source_key)
        self.of_split = {"train": Prompts(), "val": Prompts()}
        self.lengths: Lengths | None = None
        self.rewards = Rewards(files.reward) if files.reward and files.reward.file.is_file() else None
        self.no_lengths = "no tokenizer was named"
        self.broken: dict[Path, str] = {}

    @cached_property
    def repeated(self) -> tuple[Tally, Tally]:
        """Rows whose prompt stands before in their split: (with the same answer, with another one)."""
        same, other = Tally(), Tally()
        for prompts in self.of_split.values():
            for whole, part in zip((same, other), duplicates(prompts), strict=True):
                whole.count += part.count
                whole.first += part.first[: FIRST - len(whole.first)]
        return same, other

    @cached_property
    def leaked(self) -> Tally:
        """Validation rows whose question stands in the training data."""
        return leaked(self.of_split["train"], self.of_split["val"])

    def run(self) -> Scan:
        """Look at every row."""
        self.lengths = self._tokenizer()
        total = sum(rows for rows, _ in self.files.readable.values())
        for split, files in (("train", self.files.train), ("val", self.files.val)):
            for file in files:
                if file in self.files.readable:
                    self._file(split, file, total)
        if self.rewards is not None:
            self.rewards.finish()
        return self

    def _tokenizer(self) -> Lengths | None:
        if self.files.tokenizer is None:
            return None
        try:
            tokenizer = load_tokenizer(self.files.tokenizer)
        except DataError as error:
            self.no_lengths = "; ".join(part for part in (error.message, error.where, error.found) if part)
            return None
        if self.files.chat_template:
            tokenizer.chat_template = self.files.chat_template
        return Lengths(tokenizer, self.files.max_prompt_length, self.files.template)

    def _file(self, split: str, file: Path, total: int) -> None:
        try:
            for numbers, rows in self._batches(file):
                self._batch(split, file, numbers, rows)
                self.files.progress(self.rows.rows, max(total, self.rows.rows))
        except DataError as error:
            self.broken[file] = "; ".join(part for part in (error.where, error.message, error.found) if part)

    def _batches(self, file: Path) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
        if file.suffix != ".parquet":
            for batch in read_batches(file, BATCH):
                yield batch.places, batch.rows
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        wanted = [self.files.prompt_key, self.files.source_key, "reward_model", "extra_info"]
        first = 0
        try:
            with pq.ParquetFile(file) as source:
                present = [name for name in wanted if name in source.schema_arrow.names]
                for batch in source.iter_batches(batch_size=BATCH, columns=present):
                    yield self._decoded(file, first, batch)
                    first += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise DataError("cannot be read", where=f"{file}:{first}", found=one_line(error)) from error

    def _decoded(self, file: Path, first: int, batch: Any) -> tuple[list[int], list[dict[str, Any]]]:
        """The rows of a batch as plain data; those whose bytes are no text are counted and left out."""
        numbers = range(first, first + batch.num_rows)
        try:
            return list(numbers), batch.to_pylist()
        except UnicodeDecodeError:
            kept, rows = [], []
        for index, number in enumerate(numbers):
            try:
                rows += batch.slice(index, 1).to_pylist()
                kept.append(number)
            except UnicodeDecodeError as error:
                self.rows.unreadable(file, number, _bytes_fault(error))
        return kept, rows

    def _batch(self, split: str, file: Path, numbers: Sequence[int], rows: Sequence[dict[str, Any]]) -> None:
        usable: list[tuple[int, list[dict[str, Any]]]] = []
        answers: list[tuple[int, str, Any, Any]] = []
        for number, row in zip(numbers, rows, strict=True):
            messages = self.rows.look(file, number, row)
            reward = row.get("reward_model")
            truth = reward.get("ground_truth") if isinstance(reward, dict) else None
            source = row.get(self.files.source_key)
            if truth is not None and source:
                answers.append((number, source, truth, row.get("extra_info")))
            if messages is not None:
                usable.append((number, messages))
                self.of_split[split].add(file, number, messages, truth)
        if self.lengths is not None:
            self.lengths.look(file, [number for number, _ in usable], [messages for _, messages in usable])
        if self.rewards is not None:
            self.rewards.look(file, answers)


def _bytes_fault(error: UnicodeDecodeError) -> str:
    part = error.object[error.start : error.start + 3]
    # 0xED 0xA0..0xBF begins half of a surrogate pair, as some writers put it into UTF-8.
    half = len(part) > 1 and part[0] == 0xED and part[1] >= 0xA0  # noqa: PLR2004
    what = "half of a surrogate pair" if half else "not UTF-8"
    return f"{what}: bytes {part.hex(' ')}"
