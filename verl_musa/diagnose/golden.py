"""``gate.reward``: the reward function on the recipe's golden pairs, and the data's ground truth against them.

``golden.yaml`` in the recipe's folder, written by hand::

    schema: 1
    scores: {right: [1, 1], wrong: [0, 0]}   # lowest and highest score of a right and of a wrong response
    cases:
      - prompt: "what the user asks, as in the data"
        ground_truth: "42"
        right: ["42", " 42"]
        wrong: ["41", ""]

A case whose prompt stands in the data must have the same ground truth there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verl_musa.checks import Check, Finding, Result, fail, ok, run_checks, unknown, warn
from verl_musa.data.reward import PROBE_SECONDS, probe
from verl_musa.data.subject import Subject
from verl_musa.errors import DataError
from verl_musa.recipe import Resolved

FILE = "golden.yaml"
_PATH = "reward.custom_reward_function.path"
_NAME = "reward.custom_reward_function.name"
_KWARGS = "reward.custom_reward_function.reward_kwargs"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Bounds(_Part):
    """Lowest and highest score of right and of wrong responses."""

    right: tuple[float, float]
    wrong: tuple[float, float]


class Case(_Part):
    """One prompt with responses that are known to be right or wrong."""

    prompt: str
    ground_truth: Any
    right: list[str] = Field(min_length=1)
    wrong: list[str] = Field(min_length=1)


class Golden(_Part):
    """The whole file."""

    schema_version: Literal[1] = Field(alias="schema")
    scores: Bounds
    cases: list[Case] = Field(min_length=1)


def golden_file(resolved: Resolved) -> Path:
    """The recipe's file, or that of the last of its variants that has one: ``variants/NAME/golden.yaml``."""
    folder = resolved.recipe.folder
    own = [folder / "variants" / name / FILE for name in resolved.recipe.variants]
    return next((path for path in reversed(own) if path.is_file()), folder / FILE)


def load_golden(path: Path) -> Golden:
    """Read a ``golden.yaml``.

    Raises:
        DataError: it is not YAML, or not in this form.
    """
    import yaml

    try:
        return Golden.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise DataError("this is not valid YAML", where=f"{path}:{mark.line + 1}" if mark else str(path),
                        found=str(getattr(error, "problem", error)), fix="correct the line") from error  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(
            "golden pairs in another form",
            where=str(path),
            found=f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}",
            expected="schema, scores and cases as docs/gate.md shows",
            fix="correct that entry",
        ) from error


@dataclass(frozen=True)
class _Call:
    """One call of the reward function and the bounds of its score."""

    case: Case
    kind: str
    response: str
    bounds: tuple[float, float]
    sample: dict[str, Any]


def check_reward(subject: Subject) -> Finding:
    """The reward function scores right and wrong responses as the golden pairs say, with the data's own ground truth."""
    path = golden_file(subject.resolved)
    if not path.is_file():
        return unknown("the recipe has no golden pairs", f"write {FILE} as docs/gate.md shows", str(path))
    golden = load_golden(path)
    rows = _rows_of(golden, subject)
    for case in golden.cases:
        truth = (rows.get(case.prompt) or {}).get("ground_truth", case.ground_truth)
        if str(truth) != str(case.ground_truth):
            return fail(
                f"the data says {truth!r} for the prompt {case.prompt!r}, the golden pair {case.ground_truth!r}",
                "correct reward_model.ground_truth in the data, or the golden pair",
                str(path),
            )
    if _asks_a_model(subject):
        return unknown(
            f"ground truth of {len(rows)} prompts agrees; the reward asks a model that is served in the job only",
            "verl-musa gate scores the pairs there",
        )
    return _scored(subject, path, list(_calls(golden, rows, subject)), len(rows))


def _asks_a_model(subject: Subject) -> bool:
    return bool(subject.select("reward.reward_model.enable", default=False))


def calls_for_job(resolved: Resolved) -> list[dict[str, Any]]:
    """The golden pairs as the job is to score them; none where that needs no job, or where there are none.

    Raises:
        DataError: the file is not in its form.
    """
    subject = Subject(resolved)
    path = golden_file(resolved)
    if not path.is_file() or not _asks_a_model(subject):
        return []
    golden = load_golden(path)
    return [
        {
            "prompt": call.case.prompt,
            "response": call.response,
            "kind": call.kind,
            "low": call.bounds[0],
            "high": call.bounds[1],
            **{name: value for name, value in call.sample.items() if name != "solution_str"},
        }
        for call in _calls(golden, _rows_of(golden, subject), subject)
    ]


def _rows_of(golden: Golden, subject: Subject) -> dict[str, dict[str, Any]]:
    """Row facts (``ground_truth``, ``data_source``, ``extra_info``) of those golden prompts that stand in the data."""
    wanted = {case.prompt for case in golden.cases}
    key = str(subject.select("data.prompt_key", "prompt"))
    source = str(subject.select("data.reward_fn_key", "data_source"))
    found: dict[str, dict[str, Any]] = {}
    for file in [*subject.files("train"), *subject.files("val")]:
        for row in _read(file, [key, source, "reward_model", "extra_info"]):
            prompt = _text(row.get(key))
            if prompt in wanted and prompt not in found:
                found[prompt] = {
                    "ground_truth": (row.get("reward_model") or {}).get("ground_truth"),
                    "data_source": row.get(source),
                    "extra_info": row.get("extra_info") or {},
                }
        if len(found) == len(wanted):
            break
    return found


def _read(file: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of a parquet file, some columns only; none where it cannot be read (``data.train.files`` says so)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as source:
            present = [name for name in columns if name in source.schema_arrow.names]
            for batch in source.iter_batches(batch_size=1024, columns=present):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException):
        return


def _text(messages: Any) -> str:
    """What the user asks: the content of the last message."""
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        return str(messages[-1].get("content"))
    return str(messages)


def _calls(golden: Golden, rows: dict[str, dict[str, Any]], subject: Subject) -> Iterator[_Call]:
    sources = [row["data_source"] for row in rows.values() if row["data_source"]]
    fallback = sources[0] if sources else subject.resolved.recipe.name
    for case in golden.cases:
        row = rows.get(case.prompt, {})
        # verl adds these two to extra_info before it calls the function.
        extra = {**row.get("extra_info", {}), "num_turns": None, "rollout_reward_scores": {}}
        shared = {
            "data_source": row.get("data_source") or fallback,
            "ground_truth": row.get("ground_truth", case.ground_truth),
            "extra_info": extra,
        }
        for kind, responses in (("right", case.right), ("wrong", case.wrong)):
            bounds = golden.scores.right if kind == "right" else golden.scores.wrong
            for response in responses:
                yield _Call(case, kind, response, bounds, {**shared, "solution_str": response})


def _scored(subject: Subject, path: Path, calls: list[_Call], in_data: int) -> Finding:
    file = str(subject.select(_PATH, ""))
    job = {
        "file": file,
        "function": str(subject.select(_NAME)),
        "kwargs": subject.select(_KWARGS, {}),
        "samples": [call.sample for call in calls],
    }
    result = probe(job, PROBE_SECONDS)
    if "error" in result:
        return fail(f"the reward function failed: {result['error']['message']}", "see reward.scores", file)
    for call, score in zip(calls, result["scores"], strict=True):
        low, high = call.bounds
        if not low <= score <= high:
            return fail(
                f"the {call.kind} response {call.response!r} to {call.case.prompt!r} (ground truth "
                f"{call.sample['ground_truth']!r}) scores {score:g}, expected {low:g} to {high:g}",
                "correct the reward function, the ground truth of the data, or the golden pair",
                str(path),
            )
    text = (
        f"{len(calls)} responses to {len({call.case.prompt for call in calls})} prompts score as they should"
    )
    if not in_data:
        return warn(
            f"{text}; none of the prompts stands in the data", "take the prompts from the data", str(path)
        )
    return ok(f"{text}; {in_data} of the prompts stand in the data with the same ground truth")


CHECKS = (
    Check(
        "gate.reward", "the reward function on golden pairs, and their ground truth in the data", check_reward
    ),
)


def golden_results(resolved: Resolved) -> list[Result]:
    """Run the check; it starts one bounded process for the reward function."""
    return run_checks(CHECKS, Subject(resolved))
