# ruff: noqa: RUF001 - characters that look alike are part of what is tested
"""Each check of ``verl-musa data check`` with each of its outcomes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_musa.checks import Result, Status, exit_code
from verl_musa.data import check_reward
from verl_musa.data.check import CHECKS, check_data
from verl_musa.data.check_reward import RewardFunction
from verl_musa.data.check_scan import DataFiles, of_recipe
from verl_musa.data.subject import Subject

Look = Callable[..., Subject]
REWARD = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(solution_str == ground_truth)
"""


def row(question: str, truth: Any = "2", **changes: Any) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 0},
        **changes,
    }


def sums(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [row(f"{n} + 1 = ?", str(n + 1)) for n in range(start, start + count)]


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


@functools.cache
def _tokenizer_json() -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return core.to_str()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A model folder whose tokenizer counts words; its template adds two and refuses the word FORBIDDEN."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(_tokenizer_json())
    template = (
        "{%- for m in messages -%}{%- if 'FORBIDDEN' in m['content'] -%}{{ raise_exception('no such word') }}{%- endif -%}"
        "{{ m['role'] + ' ' + m['content'] + ' ' }}{%- endfor -%}{{ 'assistant' }}"
    )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def files(tmp_path: Path, tokenizer: Path) -> DataFiles:
    """Files with nothing wrong."""
    (tmp_path / "reward.py").write_text(REWARD)
    return DataFiles(
        train=[write(tmp_path / "train.parquet", sums(20))],
        val=[write(tmp_path / "val.parquet", sums(5, start=100))],
        max_prompt_length=10,
        tokenizer=tokenizer,
        reward=RewardFunction(tmp_path / "reward.py", "compute_score"),
    )


def found(files: DataFiles, name: str) -> Result:
    results, _ = check_data(files)
    return next(result for result in results if result.check == f"data.{name}")


def holds(result: Result, status: Status, evidence: str, where: str = "") -> None:
    assert result.status is status, result
    assert evidence in result.evidence, result
    assert result.where.endswith(where), result
    if status in {Status.FAIL, Status.WARN}:
        assert result.fix
        assert result.where


def test_all_right(files: DataFiles) -> None:
    told: list[tuple[int, int]] = []
    files.progress = lambda *seen: told.append(seen)
    results, rows = check_data(files)
    assert {result.check: result.status for result in results} == {
        check.name: Status.OK for check in CHECKS
    }, results
    assert exit_code(results) == 0
    assert told[-1] == (25, 25)
    assert {name: counted["count"] for name, counted in rows.items()} == dict.fromkeys(rows, 0)
    evidence = {result.check: result.evidence for result in results}
    assert evidence["data.files"] == "25 rows in 2 file(s)"
    assert evidence["data.reward"] == "25 distinct answers, each taken and paid for"
    assert evidence["data.length"] == "median 7, 99 % 7, longest 7 tokens; the limit is 10"
    assert evidence["data.leakage"] == "none of 5 validation prompts is among 20 training prompts"


def test_every_check_is_in_the_documentation() -> None:
    for name in ("data.md", "data.zh-CN.md"):
        text = (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8")
        assert [check.name for check in CHECKS if f"`{check.name}`" not in text] == []


@pytest.mark.parametrize("case", ["missing", "broken", "empty", "kind", "cut"])
def test_files(case: str, files: DataFiles, tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    if case == "broken":
        file.write_bytes(b"PAR1")
    if case == "empty":
        pq.write_table(pa.Table.from_pylist(sums(1)).slice(0, 0), file)
    if case == "kind":
        file = tmp_path / "bad.csv"
        file.write_text("a\n1\n")
    if case == "cut":
        file = tmp_path / "bad.jsonl"
        file.write_text(json.dumps(row("1+1?")) + "\n{")
    files.train = [file]
    says = {
        "missing": "no file",
        "broken": "cannot be read",
        "empty": "has no rows",
        "kind": "verl reads .parquet",
        "cut": "bad.jsonl:2; not JSON",
    }
    holds(found(files, "files"), Status.FAIL, says[case])


def test_no_files_at_all() -> None:
    results, _ = check_data(DataFiles(train=[]))
    statuses = {result.check: result.status for result in results}
    assert statuses.pop("data.files") is Status.FAIL
    assert set(statuses.values()) == {Status.UNKNOWN}


def test_json_lines_are_rows_too(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in [*sums(3), row("", "1")]))
    files = DataFiles(train=[file])
    holds(found(files, "files"), Status.OK, "4 rows in 1 file(s)")
    holds(found(files, "columns"), Status.UNKNOWN, "no parquet file")
    holds(found(files, "types"), Status.UNKNOWN, "no parquet file")
    holds(found(files, "empty"), Status.FAIL, "1 of 4 rows: a.jsonl:4", "a.jsonl:4")


def test_columns(files: DataFiles, tmp_path: Path) -> None:
    file = write(
        tmp_path / "b.parquet",
        [{"question": [{"role": "user", "content": "x"}], **row("y")} for _ in range(2)],
    )
    pq.write_table(pq.read_table(file).drop_columns(["prompt"]), file)
    files.train = [file]
    holds(found(files, "columns"), Status.FAIL, "no column 'prompt'", "b.parquet")
    other = DataFiles(train=[file], prompt_key="question")
    holds(found(other, "columns"), Status.OK, "question")
    holds(found(other, "prompt"), Status.OK, "2 prompts")


def test_types(files: DataFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    table = pq.read_table(files.train[0])
    large = pa.array(table["prompt"].to_pylist(), pa.large_list(message))
    pq.write_table(table.set_column(1, "prompt", large), tmp_path / "large.parquet")
    alone = DataFiles(train=[tmp_path / "large.parquet"])
    holds(found(alone, "types"), Status.WARN, "large_list in prompt", "large.parquet")
    both = DataFiles(train=[files.train[0], tmp_path / "large.parquet"])
    holds(found(both, "types"), Status.FAIL, "does not join train.parquet")
    assert "(and 1 more)" in found(both, "types").evidence
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    holds(found(files, "types"), Status.UNKNOWN, "datasets is not installed")


def one_bad(files: DataFiles, tmp_path: Path, bad: dict[str, Any]) -> DataFiles:
    """Training data whose rows 7 and 9 are ``bad``."""
    rows = sums(12)
    rows[7] = rows[9] = bad
    files.train = [write(tmp_path / "bad.parquet", rows)]
    return files


@pytest.mark.parametrize(
    ("prompt", "evidence"),
    [
        (None, "2 of 17 rows: bad.parquet:7 'prompt' is None"),
        ([], "'prompt' is []"),
        ([{"role": "user", "content": None}], "[0] is {'role': 'user', 'content': None}"),
    ],
)
def test_prompt(prompt: Any, evidence: str, files: DataFiles, tmp_path: Path) -> None:
    bad = one_bad(files, tmp_path, row("", prompt=prompt))
    holds(found(bad, "prompt"), Status.FAIL, evidence, "bad.parquet:7")


@pytest.mark.parametrize(
    ("roles", "evidence"),
    [
        (["human"], "role 'human', expected one of"),
        ([None], "role None"),
        (["user", "assistant"], "is from 'assistant'"),
        (["system"], "is from 'system'"),
        (["user", "system", "user"], "a system message stands at 1"),
        (["user", "user"], "two messages from 'user' in a row, at 0"),
        (["tool"], "no message from 'user'"),
    ],
)
def test_roles(roles: list[str | None], evidence: str, files: DataFiles, tmp_path: Path) -> None:
    messages = [{"role": role, "content": f"{index}"} for index, role in enumerate(roles)]
    holds(
        found(one_bad(files, tmp_path, row("", prompt=messages)), "roles"),
        Status.FAIL,
        evidence,
        "bad.parquet:7",
    )


def test_conversations_are_fine(files: DataFiles, tmp_path: Path) -> None:
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    messages = [{"role": role, "content": role} for role in roles]
    files.train = [write(tmp_path / "good.parquet", [row("", prompt=messages)])]
    holds(found(files, "roles"), Status.OK, "every answer can follow")


@pytest.mark.parametrize(
    ("bad", "evidence"),
    [
        (row("  "), "prompt[0] has no content"),
        (row("x", data_source=""), "'data_source' is ''"),
        (row("x", data_source=None), "'data_source' is None"),
    ],
)
def test_empty(bad: dict[str, Any], evidence: str, files: DataFiles, tmp_path: Path) -> None:
    holds(found(one_bad(files, tmp_path, bad), "empty"), Status.FAIL, evidence, "bad.parquet:7")


@pytest.mark.parametrize(
    ("text", "status", "evidence"),
    [
        ("1\0+1", Status.FAIL, "NUL"),
        ("\ufeff1+1", Status.WARN, "byte order mark"),
        ("Janet’s".encode().decode("cp1252"), Status.WARN, "2 of 17 rows: bad.parquet:7 mojibake"),
        ("1 \ufffd 1", Status.WARN, "(2 replacement character U+FFFD)"),
    ],
)
def test_encoding(text: str, status: Status, evidence: str, files: DataFiles, tmp_path: Path) -> None:
    holds(found(one_bad(files, tmp_path, row(text)), "encoding"), status, evidence, "bad.parquet:7")


@pytest.mark.parametrize(
    ("raw", "evidence"),
    [(b"\xff\xfe", "not UTF-8: bytes ff fe"), (b"\xed\xa0\x80x", "half of a surrogate pair: bytes ed a0 80")],
)
def test_bytes_that_are_no_text(raw: bytes, evidence: str, files: DataFiles, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(sums(3))
    contents = [b"one", raw, b"three"]
    buffers = pa.array(contents, pa.binary()).buffers()
    text = pa.StringArray.from_buffers(3, *buffers[1:])
    messages = pa.StructArray.from_arrays([pa.array(["user"] * 3), text], ["role", "content"])
    prompts = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), messages)
    pq.write_table(table.set_column(1, "prompt", prompts), tmp_path / "bad.parquet")
    files.train = [tmp_path / "bad.parquet"]
    holds(found(files, "encoding"), Status.FAIL, f"1 of 8 rows: bad.parquet:1 {evidence}", "bad.parquet:1")
    holds(found(files, "files"), Status.OK, "8 rows")


def test_duplicates(files: DataFiles, tmp_path: Path) -> None:
    files.train = [
        write(tmp_path / "a.parquet", sums(4)),
        write(tmp_path / "b.parquet", [*sums(2, 50), *sums(2)]),
    ]
    result = found(files, "duplicates")
    holds(
        result,
        Status.WARN,
        "2 of 13 rows: b.parquet:2 repeats a.parquet:0; b.parquet:3 repeats a.parquet:1",
        "b.parquet:2",
    )
    files.train = [write(tmp_path / "c.parquet", [*sums(4), row("0 + 1 = ?", "7")])]
    del files.__dict__["scan"], files.__dict__["readable"]
    holds(
        found(files, "duplicates"),
        Status.FAIL,
        "1 of 10 rows: c.parquet:4 repeats c.parquet:0",
        "c.parquet:4",
    )


def test_length(files: DataFiles, tmp_path: Path, tokenizer: Path) -> None:
    def files_with(**changes: Any) -> DataFiles:
        long = row("a b c d e f g h i j k")
        return DataFiles(
            train=[write(tmp_path / "long.parquet", [*sums(3), long])],
            **{"tokenizer": tokenizer, "max_prompt_length": 10, **changes},
        )

    seen = "1 of 4 rows: long.parquet:3 has 13 tokens"
    holds(found(files_with(), "length"), Status.FAIL, seen, "long.parquet:3")
    holds(found(files_with(drops_long=True), "length"), Status.WARN, "verl drops them", "long.parquet:3")
    holds(found(files_with(truncation="left"), "length"), Status.WARN, "verl cuts them (left)")
    holds(found(files_with(max_prompt_length=13), "length"), Status.OK, "longest 13 tokens")
    holds(found(files_with(max_prompt_length=2, drops_long=True), "length"), Status.FAIL, "4 of 4 rows")
    holds(found(files_with(max_prompt_length=None), "length"), Status.UNKNOWN, "longest 13 tokens; no limit")
    holds(found(files_with(tokenizer=None), "length"), Status.UNKNOWN, "no tokenizer was named")
    holds(found(files_with(tokenizer=tmp_path / "nowhere"), "length"), Status.UNKNOWN, "no usable tokenizer")
    holds(found(files_with(chat_template="{{ 'x ' * 30 }}"), "length"), Status.FAIL, "4 of 4 rows")
    assert files.tokenizer == tokenizer


def test_a_template_that_refuses_a_row(files: DataFiles, tmp_path: Path) -> None:
    bad = one_bad(files, tmp_path, row("FORBIDDEN"))
    holds(
        found(bad, "length"),
        Status.FAIL,
        "2 of 17 rows: bad.parquet:7 the chat template refuses it: TemplateError: no such word",
        "bad.parquet:7",
    )


@pytest.mark.parametrize("truth", [None, "", " "])
def test_truth(truth: Any, files: DataFiles, tmp_path: Path) -> None:
    bad = one_bad(files, tmp_path, row("x", truth))
    holds(
        found(bad, "truth"),
        Status.FAIL,
        f"bad.parquet:7 reward_model.ground_truth is {truth!r}",
        "bad.parquet:7",
    )
    holds(found(DataFiles(train=[tmp_path / "val.parquet"]), "truth"), Status.OK, "style: 5 rule")


def reward_of(tmp_path: Path, body: str) -> RewardFunction:
    file = tmp_path / "reward.py"
    file.write_text(
        f"def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n{body}"
    )
    return RewardFunction(file, "compute_score")


@pytest.mark.parametrize(
    ("body", "status", "evidence", "where"),
    [
        ("    return 1.0 if ground_truth in solution_str else 0.0\n", Status.OK, "each taken and paid for", ""),
        ("    return 1.0 if solution_str == '#### ' + ground_truth else 0.0\n", Status.OK, "25 distinct", ""),
        ("    print('noise')\n    return {'score': float(len(solution_str))}\n", Status.OK, "25 distinct", ""),
        ("    return 0.0\n", Status.WARN, "25 of 25 rows: train.parquet:0 ground truth '1' earns 0, an empty response 0", "train.parquet:0"),
        ("    return 1.0 / (int(ground_truth) - 8)\n", Status.FAIL, "1 of 25 rows: train.parquet:7 ground truth '8': ZeroDivisionError", "reward.py:2"),
        ("    return 'one'\n", Status.FAIL, "returned 'one', not a number", "train.parquet:0"),
        ("    raise SystemExit(3)\n", Status.FAIL, "SystemExit", "reward.py:2"),
        ("    import os\n    os._exit(0 if ground_truth != '8' else 9)\n", Status.FAIL, "ground truth '1': it ended with exit code 0", "train.parquet:0"),
        ("    syntax error\n", Status.FAIL, "cannot be loaded: SyntaxError", "reward.py"),
    ],
)  # fmt: skip
def test_reward(  # noqa: PLR0917  (fixtures)
    body: str, status: Status, evidence: str, where: str, files: DataFiles, tmp_path: Path
) -> None:
    files.reward = reward_of(tmp_path, body)
    holds(found(files, "reward"), status, evidence, where)


def test_a_reward_that_hangs_is_ended_and_its_row_named(
    files: DataFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_reward, "BATCH_SECONDS", 3.0)
    monkeypatch.setattr(check_reward, "ROW_SECONDS", 2.0)
    files.reward = reward_of(
        tmp_path, "    import time\n    time.sleep(600 if ground_truth == '8' else 0)\n    return 1.0\n"
    )
    holds(
        found(files, "reward"),
        Status.FAIL,
        "train.parquet:7 compute_score on ground truth '8': no answer within 2 s",
        "train.parquet:7",
    )


def test_equal_answers_are_asked_once(files: DataFiles, tmp_path: Path) -> None:
    files.train = [write(tmp_path / "same.parquet", [row(f"{n} + 0 = ?", "2") for n in range(2000)])]
    files.val = []
    holds(found(files, "reward"), Status.OK, "1 distinct answers")


def test_a_reward_model_is_stood_in_for(files: DataFiles, tmp_path: Path) -> None:
    function = reward_of(tmp_path, "    assert kwargs['reward_router_address']\n    return 0.0\n")
    files.reward = RewardFunction(function.file, function.name, judged=True)
    holds(found(files, "reward"), Status.OK, "a reward model is stood in for")
    files.reward = None
    del files.__dict__["scan"]
    holds(found(files, "reward"), Status.UNKNOWN, "no reward function was named")


def test_leakage(files: DataFiles, tmp_path: Path) -> None:
    files.val = [write(tmp_path / "v.parquet", [*sums(2, 500), row("3  +  1 = ?\n", "4"), row("X", "1")])]
    holds(
        found(files, "leakage"),
        Status.FAIL,
        "1 of 4 rows: v.parquet:2 is also train.parquet:3",
        "v.parquet:2",
    )
    files.val = []
    holds(found(files, "leakage"), Status.UNKNOWN, "only one split")
    files.val = [tmp_path / "missing.parquet"]
    del files.__dict__["scan"], files.__dict__["readable"]
    holds(found(files, "leakage"), Status.UNKNOWN, "no usable prompts")


def test_the_counts_are_there_for_programs(files: DataFiles, tmp_path: Path) -> None:
    _, rows = check_data(one_bad(files, tmp_path, row("")))
    assert rows["data.empty"]["count"] == 2
    assert rows["data.empty"]["first"][0] == {
        "file": str(tmp_path / "bad.parquet"),
        "row": 7,
        "found": "prompt[0] has no content",
    }


def test_a_recipe_says_what_its_data_must_be(look: Look, folder: Path, tmp_path: Path) -> None:
    subject = look("data.prompt_key=question", "data.filter_overlong_prompts=true", "data.truncation=left")
    files = of_recipe(subject.resolved)
    assert (files.prompt_key, files.source_key, files.max_prompt_length) == ("question", "data_source", 16)
    assert (files.drops_long, files.truncation) == (True, "left")
    assert files.files == [folder / "train.parquet", folder / "val.parquet"]
    assert files.tokenizer == folder / "model"
    assert files.reward == RewardFunction(folder / "reward.py", "compute_score")
    other = of_recipe(subject.resolved, [tmp_path / "mine.parquet"])
    assert (other.files, other.val) == ([tmp_path / "mine.parquet"], [])


def test_many_batches_keep_their_row_numbers(
    files: DataFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_musa.data.check_scan.BATCH", 4)
    bad = one_bad(files, tmp_path, row("", prompt=[]))
    holds(found(bad, "prompt"), Status.FAIL, "2 of 17 rows: bad.parquet:7 'prompt' is []", "bad.parquet:7")
