from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_musa.data.prepare_mapping import Mapper, Mapping, RowError, has_columns, load_mapping
from verl_musa.data.sources import SOURCES
from verl_musa.errors import DataError


def mapper(**changes: Any) -> Mapper:
    return Mapper(Mapping.model_validate({"prompt": "q", "ground_truth": "a", "data_source": "d", **changes}))


@pytest.mark.parametrize(
    ("value", "changes", "messages"),
    [
        ("1+1?", {}, [("user", "1+1?")]),
        (" 1+1?\n", {"prefix": "Q: ", "suffix": "\nBox it."}, [("user", "Q: 1+1?\nBox it.")]),
        ("1+1?", {"system": "Add."}, [("system", "Add."), ("user", "1+1?")]),
        ([{"role": "user", "content": "1+1?"}], {"suffix": "!"}, [("user", "1+1?!")]),
        (
            [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
            {"system": "Add."},
            [("system", "s"), ("user", "u")],
        ),
        ('[{"role": "user", "content": "1+1?"}]', {}, [("user", "1+1?")]),
        ('[{"role": no json', {}, [("user", '[{"role": no json')]),
        ("Solve: <1+1?>", {"question": r"<(.*)>"}, [("user", "1+1?")]),
        ("1+1?", {"question": r"<(.*)>"}, [("user", "1+1?")]),
    ],
)
def test_prompts(value: Any, changes: dict[str, Any], messages: list[tuple[str, str]]) -> None:
    assert mapper(**changes).messages({"q": value}) == messages


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "is None, neither text nor messages"),
        (7, "is 7"),
        ([], "is \\[\\]"),
        ("  ", "is empty"),
        ([{"role": "human", "content": "x"}], "no {role, content}"),
        ([{"role": "user", "content": None}], "no {role, content}"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "from 'assistant'"),
    ],
)
def test_what_is_no_prompt(value: Any, says: str) -> None:
    with pytest.raises(RowError, match=says):
        mapper().messages({"q": value})


@pytest.mark.parametrize(
    ("value", "extract", "truth"),
    [
        ("42", "none", "42"),
        (42, "none", "42"),
        (42.0, "none", "42"),
        (0.5, "none", "0.5"),
        (" \\frac{1}{2} ", "none", "\\frac{1}{2}"),
        ("5+5=<<5+5=10>>10\n#### 10", "gsm8k", "10"),
        ("#### 1,234", "gsm8k", "1234"),
        ("#### 12,345,678", "gsm8k", "12345678"),
        ("#### -5", "gsm8k", "-5"),
        ("#### $5.50", "gsm8k", "5.50"),
        ("a #### 1\n#### 2 ", "gsm8k", "2"),
        ("so \\boxed{\\frac{1}{2}}.", "boxed", "\\frac{1}{2}"),
    ],
)
def test_ground_truth(value: Any, extract: str, truth: str) -> None:
    assert mapper(extract=extract).ground_truth({"a": value}) == truth


@pytest.mark.parametrize(
    ("value", "extract"),
    [(None, "none"), ("", "none"), (" ", "none"), (True, "none"), (["1"], "none"), ("10", "gsm8k"), ("####", "gsm8k"), ("#### ten", "gsm8k"), ("10", "boxed"), ("\\boxed{}", "boxed")],
)  # fmt: skip
def test_no_ground_truth(value: Any, extract: str) -> None:
    with pytest.raises(RowError):
        mapper(extract=extract).ground_truth({"a": value})


def test_dots_reach_into_structs_unless_a_column_has_the_name() -> None:
    nested = mapper(ground_truth="reward_model.ground_truth")
    assert nested.ground_truth({"reward_model": {"ground_truth": "1"}}) == "1"
    assert (
        nested.ground_truth({"reward_model.ground_truth": "2", "reward_model": {"ground_truth": "1"}}) == "2"
    )
    with pytest.raises(RowError, match=r"no column 'reward_model\.ground_truth'; the row has reward_model"):
        nested.ground_truth({"reward_model": {}})
    assert has_columns({"q": "", "reward_model": {"ground_truth": None}}, nested.mapping)
    assert not has_columns({"q": ""}, nested.mapping)


def test_kept_columns_are_text() -> None:
    keep = mapper(keep=["level", "tags", "none"])
    assert keep.kept({"level": "5", "tags": ["a", "中"], "none": None}) == ["5", '["a", "中"]', None]


def test_the_instructions_of_dapo_are_replaced() -> None:
    (mapping,) = SOURCES["dapo-math-17k"].mappings
    text = "Solve the following math problem step by step.\n\nWhat is\n\n1+1?\n\nRemember to put your answer on its own line."
    row = {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "2"}}
    assert Mapper(mapping).messages(row) == [("user", f"What is\n\n1+1?{mapping.suffix}")]
    plain = {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}}
    assert Mapper(mapping).messages(plain) == [("user", f"1+1?{mapping.suffix}")]


def test_every_pinned_revision_is_a_commit() -> None:
    for source in SOURCES.values():
        revision = source.huggingface.revision
        assert revision is not None
        assert len(revision) == 40
        assert set(source.huggingface.files) <= {"train", "val"}


def test_a_mapping_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(
        'schema: 1\nprompt: q\nground_truth: a\ndata_source: d\nkeep: [level]\nsuffix: "\\nBox it."\n'
    )
    mapping = load_mapping(file)
    assert (mapping.suffix, mapping.keep, mapping.extract) == ("\nBox it.", ("level",), "none")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prompt: q\n", "Field required at ground_truth"),
        ("prompt: q\nground_truth: a\ndata_source: d\nsufix: x\n", "Extra inputs are not permitted at sufix"),
        ("prompt: q\nground_truth: a\ndata_source: d\nquestion: '(a)(b)'\n", "exactly one group"),
        ("prompt: q\nground_truth: a\ndata_source: d\nquestion: '('\n", "not a regular expression"),
        ("prompt: q\nground_truth: a\ndata_source: d\nextract: last\n", "extract"),
        ("- 1\n", "at the top"),
        ("a: [\n", "expected"),
    ],
)
def test_a_mapping_with_a_mistake(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        load_mapping(file)
    assert says in (caught.value.found or "")
    with pytest.raises(DataError, match="cannot read the mapping"):
        load_mapping(tmp_path / "missing.yaml")
