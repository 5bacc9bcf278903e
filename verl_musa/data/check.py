"""``verl-musa data check``: the columns and every row of prompt files, against what verl, the tokenizer and the reward need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verl_musa.checks import Check, Finding, Result, fail, ok, run_checks, unknown, warn
from verl_musa.data.check_scan import DataFiles, open_file
from verl_musa.data.check_tally import Tally
from verl_musa.data.check_types import Fault, column_faults, group_faults, joined, type_faults


def check_data(files: DataFiles) -> tuple[list[Result], dict[str, Any]]:
    """Run every check; the results, and the counts and first rows of each as plain data."""
    results = run_checks(CHECKS, files)
    return results, {name: tally.as_json() for name, tally in _tallies(files).items()}


def check_files(files: DataFiles) -> Finding:
    """Every file is there, can be read to its end and has rows."""
    if not files.files:
        return fail("no files", "name some, or a recipe")
    for file in files.files:
        opened = open_file(file)
        if isinstance(opened, str):
            return fail(opened, "correct the name, or make the file again", str(file))
        rows, schema = opened
        if schema is not None and rows == 0:
            return fail(f"{file} has no rows", "make the file again", str(file))
    for file, said in files.scan.broken.items():
        return fail(said, "make the file again", str(file))
    rows = files.scan.rows.rows
    if not rows:
        return fail("no rows", "make the files again", str(files.files[0]))
    return ok(f"{rows:,} rows in {len(files.files)} file(s)")


def check_columns(files: DataFiles) -> Finding:
    """The columns that verl reads are there and hold what it needs."""
    schemas = _schemas(files)
    if not schemas:
        return unknown("no parquet file can be read (see data.files)")
    faults = [
        fault
        for file, schema in schemas.items()
        for fault in column_faults(file, schema, files.prompt_key, files.source_key)
    ]
    return _of_faults(faults) or ok(", ".join(next(iter(schemas.values())).names))


def check_types(files: DataFiles) -> Finding:
    """The types of all columns are read alike by every version of ``datasets``, and the files of a split can be joined."""
    import pyarrow.parquet as pq

    schemas = _schemas(files)
    if not schemas:
        return unknown("no parquet file can be read (see data.files)")
    faults = [fault for file, schema in schemas.items() for fault in type_faults(file, schema)]
    faults += [fault for file in schemas for fault in group_faults(file, pq.read_metadata(file))]
    try:
        for split in (files.train, files.val):
            of_split = [file for file in split if file in schemas]
            fault = joined(of_split, [schemas[file] for file in of_split])
            faults += [fault] if fault else []
    except ImportError:
        return _of_faults(faults) or unknown(
            "datasets is not installed here, so reading was not tried", "run this in the image"
        )
    return _of_faults(faults) or ok("datasets reads and joins them")


def _schemas(files: DataFiles) -> dict[Path, Any]:
    return {file: schema for file, (_, schema) in files.readable.items() if schema is not None}


def _of_faults(faults: Sequence[Fault]) -> Finding | None:
    """The first hard fault, else the first soft one, with how many there are."""
    if not faults:
        return None
    first = next((fault for fault in faults if fault.hard), faults[0])
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return (fail if first.hard else warn)(f"{first.found}{more}", first.fix, str(first.file))


def _of_tally(
    tally: Tally, files: DataFiles, fix: str, good: str, worst: Callable[..., Finding] = fail
) -> Finding:
    rows = files.scan.rows.rows
    if not rows:
        return unknown("no rows can be read (see data.files)")
    return worst(tally.evidence(rows), fix, tally.where) if tally.count else ok(good)


def check_prompt(files: DataFiles) -> Finding:
    """Every prompt is a list of messages."""
    good = f"{files.scan.rows.rows:,} prompts are lists of messages"
    return _of_tally(files.scan.rows.prompt, files, "correct the rows, or leave them out", good)


def check_roles(files: DataFiles) -> Finding:
    """The messages come from known roles, in an order that an answer can follow."""
    return _of_tally(
        files.scan.rows.roles,
        files,
        "correct the rows, or leave them out",
        "every answer can follow its prompt",
    )


def check_empty(files: DataFiles) -> Finding:
    """No message and no data source is empty."""
    return _of_tally(
        files.scan.rows.empty,
        files,
        "fill them in, or leave the rows out",
        "no message or data source is empty",
    )


def check_encoding(files: DataFiles) -> Finding:
    """The texts are UTF-8 and look like what was written."""
    rows = files.scan.rows
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in rows.kinds.most_common())
    fix = "decode the source with its right code page and prepare the data again"
    if rows.broken_text.count:
        return _of_tally(rows.broken_text, files, fix, "")
    found = _of_tally(rows.odd_text, files, fix, "no broken or misread text", warn)
    return warn(f"{found.evidence} ({kinds})", found.fix, found.where) if rows.odd_text.count else found


def check_duplicates(files: DataFiles) -> Finding:
    """No prompt stands twice in a split, least of all with two answers."""
    same, other = files.scan.repeated
    if other.count:
        return _of_tally(other, files, "keep the right answer of each prompt", "")
    fix = "drop them (`verl-musa data prepare` does), unless the weight is meant"
    return _of_tally(same, files, fix, "every prompt stands once", warn)


def check_length(files: DataFiles) -> Finding:
    """The prompts fit ``data.max_prompt_length`` after the chat template."""
    lengths = files.scan.lengths
    if lengths is None or not lengths.rows:
        return unknown(
            files.scan.no_lengths if lengths is None else "no usable prompts", "name a recipe or --tokenizer"
        )
    spread = f"median {lengths.quantile(0.5):,}, 99 % {lengths.quantile(0.99):,}, longest {lengths.quantile(1):,} tokens"
    if lengths.refused.count:
        return _of_tally(lengths.refused, files, "correct the rows, or the template", "")
    if lengths.limit is None:
        return unknown(f"{spread}; no limit was named", "name a recipe or --max-prompt-length")
    if not lengths.over.count:
        return ok(f"{spread}; the limit is {lengths.limit:,}")
    seen = f"{lengths.over.evidence(files.scan.rows.rows)}; {spread}, the limit is {lengths.limit:,}"
    fix = "raise data.max_prompt_length, or leave the rows out"
    if lengths.over.count == lengths.rows or not (files.drops_long or files.truncation != "error"):
        return fail(seen, f"{fix} (data.filter_overlong_prompts: true)", lengths.over.where)
    done = "verl drops them" if files.drops_long else f"verl cuts them ({files.truncation})"
    return warn(f"{seen}; {done}", fix, lengths.over.where)


def check_truth(files: DataFiles) -> Finding:
    """Every row has a ground truth."""
    styles = ", ".join(f"{count:,} {style}" for style, count in files.scan.rows.styles.most_common(3))
    return _of_tally(
        files.scan.rows.truth, files, "fill them in, or leave the rows out", f"in every row; style: {styles}"
    )


def check_reward(files: DataFiles) -> Finding:
    """The recipe's reward function takes every ground truth, and pays for it."""
    rewards = files.scan.rewards
    if rewards is None:
        return unknown(
            "no reward function was named" if files.reward is None else f"no file {files.reward.file}",
            "name a recipe",
        )
    if rewards.raised.count:
        where = f"{rewards.function.file}:{rewards.line}" if rewards.line else rewards.raised.where
        return fail(
            rewards.raised.evidence(files.scan.rows.rows),
            "correct the ground truth of these rows, or make the function take it",
            where,
        )
    if rewards.given_up:
        return fail(
            rewards.given_up,
            "correct the file (see reward.file of `verl-musa recipe check`)",
            str(rewards.function.file),
        )
    if not rewards.distinct:
        return unknown("no row has a data source and a ground truth (see data.truth)")
    if rewards.unpaid.count:
        return warn(
            rewards.unpaid.evidence(files.scan.rows.rows),
            "no response can earn anything there: write the answers as the function reads them",
            rewards.unpaid.where,
        )
    judged = "; a reward model is stood in for" if rewards.function.judged else ""
    return ok(f"{rewards.distinct:,} distinct answers, each taken{'' if judged else ' and paid for'}{judged}")


def check_leakage(files: DataFiles) -> Finding:
    """No validation prompt is a training prompt."""
    if not files.train or not files.val:
        return unknown("only one split was named", "name a recipe, or the other split with --val")
    tally = files.scan.leaked
    rows = len(files.scan.of_split["val"])
    if not rows or not len(files.scan.of_split["train"]):
        return unknown("no usable prompts in one of the splits")
    if tally.count:
        return fail(
            tally.evidence(rows),
            "leave them out of the training data: validation would reward memory",
            tally.where,
        )
    return ok(
        f"none of {rows:,} validation prompts is among {len(files.scan.of_split['train']):,} training prompts"
    )


def _tallies(files: DataFiles) -> dict[str, Tally]:
    """Counts and first rows of each check that counts."""
    scan = files.scan
    same, other = files.scan.repeated
    found = {
        "data.prompt": scan.rows.prompt,
        "data.roles": scan.rows.roles,
        "data.empty": scan.rows.empty,
        "data.encoding": scan.rows.broken_text if scan.rows.broken_text.count else scan.rows.odd_text,
        "data.duplicates": other if other.count else same,
        "data.truth": scan.rows.truth,
        "data.leakage": scan.leaked,
    }
    if scan.lengths is not None:
        found["data.length"] = scan.lengths.refused if scan.lengths.refused.count else scan.lengths.over
    if scan.rewards is not None:
        found["data.reward"] = scan.rewards.raised if scan.rewards.raised.count else scan.rewards.unpaid
    return found


CHECKS = (
    Check("data.files", "the files, to their last row", check_files),
    Check("data.columns", "the columns that verl reads", check_columns),
    Check("data.types", "types, as datasets reads and joins them", check_types),
    Check("data.prompt", "each prompt, as a list of messages", check_prompt),
    Check("data.roles", "roles and their order", check_roles),
    Check("data.empty", "empty messages and data sources", check_empty),
    Check("data.encoding", "UTF-8, and text decoded by the wrong code page", check_encoding),
    Check("data.duplicates", "prompts that stand twice", check_duplicates),
    Check("data.length", "tokens after the chat template", check_length),
    Check("data.truth", "ground truth", check_truth),
    Check("data.reward", "each ground truth in the recipe's reward function", check_reward),
    Check("data.leakage", "validation prompts among the training prompts", check_leakage),
)
