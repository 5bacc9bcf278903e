"""Checks of the prompt files, in verl's parquet layout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verl_musa.checks import Check, Finding, fail, ok, unknown
from verl_musa.data.subject import Subject

SAMPLED_ROWS = 1000
"""Rows of each file whose content is looked at; the schema and the row count cover the whole file."""

ROLES = ("system", "user", "assistant", "tool")
LAST_ROLES = ("user", "tool")
"""Roles that a generated answer can follow."""


def check_files(split: str, subject: Subject) -> Finding:  # noqa: PLR0911  (one return an outcome)
    """Every file exists, is parquet and has rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    files = subject.files(split)
    for file in files:
        pending = subject.not_made_yet(file)
        if pending:
            return pending
        where = subject.where(f"data.{split}_files")
        if not file.is_file():
            return fail(
                f"no file {file}", f"correct data.{split} in recipe.yaml, or put the file there", where
            )
        if file.suffix != ".parquet":
            return unknown(
                f"{file.name}: only .parquet files are looked into", "convert it to parquet", where
            )
        try:
            count = pq.read_metadata(file).num_rows
        except (OSError, pa.ArrowException) as error:
            return fail(f"{file} cannot be read: {one_line(error)}", "make the file again", str(file))
        if count == 0:
            return fail(f"{file} has no rows", "make the file again", str(file))
        rows += count
    if not files:
        return fail("no files", f"name files in data.{split}", subject.where(f"data.{split}_files"))
    return ok(f"{rows:,} rows in {len(files)} file(s)")


def check_columns(split: str, subject: Subject) -> Finding:
    """The columns that verl reads are there with the types it needs, alike in every file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = [file for file in subject.files(split) if file.is_file()]
    try:
        schemas = [pq.read_schema(file) for file in files]
    except (OSError, pa.ArrowException):
        schemas = []
    if not schemas:
        return _unread(split, subject)
    for file, schema in zip(files, schemas, strict=True):
        for column, expected, right in _layout(subject):
            if column not in schema.names:
                return fail(
                    f"no column {column!r}; the file has {', '.join(schema.names)}",
                    f"add {column!r}: {expected}",
                    str(file),
                )
            if not right(schema.field(column).type):
                return fail(
                    f"column {column!r} is {schema.field(column).type}",
                    f"write {column!r} as {expected}",
                    str(file),
                )
        if not schema.equals(schemas[0]):
            return fail(
                "its columns differ from the first file's; verl joins them", "make the files alike", str(file)
            )
    return ok(", ".join(schemas[0].names))


def _layout(subject: Subject) -> list[tuple[str, str, Any]]:
    """(column, what it must be, test of its type), with the names that verl's config gives."""
    return [
        (str(subject.select("data.prompt_key", "prompt")), "a list of {role, content} structs", is_messages),
        (str(subject.select("data.reward_fn_key", "data_source")), "text", is_text),
        ("reward_model", "a struct with ground_truth", lambda kind: has_fields(kind, "ground_truth")),
    ]


def is_text(kind: Any) -> bool:
    """Whether an arrow type is text, dictionary-encoded or not."""
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))


def has_fields(kind: Any, *names: str) -> bool:
    """Whether an arrow type is a struct with these fields."""
    import pyarrow as pa

    return bool(pa.types.is_struct(kind)) and all(kind.get_field_index(name) >= 0 for name in names)


def is_messages(kind: Any) -> bool:
    """Whether an arrow type is a list of {role, content} structs."""
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list) and has_fields(kind.value_type, "role", "content")


def _unread(split: str, subject: Subject) -> Finding:
    files = subject.files(split)
    pending = subject.not_made_yet(files[0]) if files else None
    return pending or unknown(f"no readable file (see data.{split}.files)")


def check_rows(split: str, subject: Subject) -> Finding:
    """The first rows hold prompts that a chat template can take and an answer to score against."""
    looked_at = 0
    for file in subject.files(split):
        rows = sample_rows(file, SAMPLED_ROWS)
        if rows is None:
            return _unread(split, subject)
        for number, row in enumerate(rows):
            problem = _row_problem(row, subject)
            if problem:
                return fail(f"row {number}: {problem}", "correct the row and make the file again", str(file))
        looked_at += len(rows)
    return ok(f"{looked_at:,} rows looked at") if looked_at else _unread(split, subject)


def _row_problem(row: dict[str, Any], subject: Subject) -> str | None:  # noqa: PLR0911  (one return an outcome)
    prompt_key, source_key, _ = (column for column, _, _ in _layout(subject))
    messages = row.get(prompt_key)
    if not isinstance(messages, list) or not messages:
        return f"{prompt_key!r} is {messages!r}, not a list of messages"
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            role = message.get("role") if isinstance(message, dict) else message
            return f"{prompt_key}[{index}] has role {role!r}, expected one of {', '.join(ROLES)}"
        if not message.get("content"):
            return f"{prompt_key}[{index}] has no content"
    if messages[-1]["role"] not in LAST_ROLES:
        return f"the last message is from {messages[-1]['role']!r}; an answer can follow {' or '.join(LAST_ROLES)} only"
    if not row.get(source_key):
        return f"{source_key!r} is empty"
    reward_model = row.get("reward_model")
    if not isinstance(reward_model, dict) or reward_model.get("ground_truth") is None:
        return "reward_model.ground_truth is empty"
    return None


def sample_rows(file: Path, limit: int) -> list[dict[str, Any]] | None:
    """The first ``limit`` rows of a parquet file as plain data, read in small batches; None where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    try:
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(batch_size=min(limit, 256)):
                rows += batch.to_pylist()
                if len(rows) >= limit:
                    break
    except (OSError, pa.ArrowException):
        return None
    return rows[:limit]


def count_rows(files: Sequence[Path]) -> int | None:
    """Rows of all ``files``; None where one cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return sum(pq.read_metadata(file).num_rows for file in files)
    except (OSError, pa.ArrowException):
        return None


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:300]


CHECKS = tuple(
    Check(f"data.{split}.{name}", f"the {split} prompts: {what}", partial(function, split))
    for split in ("train", "val")
    for name, what, function in (
        ("files", "files and row counts", check_files),
        ("columns", "columns and their types", check_columns),
        ("rows", f"content of the first {SAMPLED_ROWS:,} rows of each file", check_rows),
    )
)
