from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from verl_musa.diagnose.triage import triage_paths
from verl_musa.diagnose.triage_card import Verdict
from verl_musa.diagnose.triage_rules import (
    LAYERS,
    Rule,
    TriageRulesError,
    literal,
    load_rules,
    shipped_rules,
    values,
)
from verl_musa.diagnose.triage_scan import Scan, Searcher
from verl_musa.diagnose.triage_sources import Source

RULES = shipped_rules()
EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.id}-{number}")
    for rule in sorted(RULES.rules, key=lambda rule: rule.id)
    for number, example in enumerate(rule.examples)
]


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_each_rule_alone_explains_its_examples(rule: Rule, example: str, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(f"an ordinary line\n{example}\nstep 1\n", encoding="utf-8")
    card = triage_paths([log])
    if rule.kind == "context":
        found = Scan(Searcher(RULES), Source("x.log", log), year=None, late=lambda: False).run()
        assert rule.id in {event.rule.id for event in found.events if event.rule}
        assert card.verdict is Verdict.CLEAN
    else:
        assert (card.rule, card.layer) == (rule.id, rule.layer)
        assert card.verdict is (Verdict.FOUND if rule.kind == "cause" else Verdict.CONSEQUENCE)
        assert card.fix
        assert "{" not in card.what


def test_every_layer_has_rules_and_ids_say_which() -> None:
    assert {rule.layer for rule in RULES.rules} == set(LAYERS)
    assert all(rule.id.startswith(f"{rule.layer.lower()}.") for rule in RULES.rules)


def test_links_into_the_documentation_lead_somewhere() -> None:
    root = Path(__file__).parents[2]
    links = {link for rule in RULES.rules for link in rule.links if link.startswith("docs/")}
    assert links
    assert [link for link in sorted(links) if not (root / link).is_file()] == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"Failed to connect at (?P<a>\S+) now", "Failed to connect at "),
        (r"(?i)out of memory", "out of memory"),
        (r"colou?r of the sky", "r of the sky"),
        (r"\[internal\] load \.dockerignore", "[internal] load .dockerignore"),
        (r"abc{2,3}defgh", "defgh"),
        (r"x[a|b)]*wxyz\d+", "wxyz"),
        (r"(?:a|b) is dead", " is dead"),
    ],
)
def test_the_text_that_a_pattern_needs(pattern: str, expected: str) -> None:
    assert literal(pattern) == expected


@pytest.mark.parametrize("pattern", [r"\d+ \w+", "(abcdefgh)", "abc", "abcd|efgh"])
def test_a_pattern_that_no_search_could_find_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"plain characters|two patterns"):
        literal(pattern)


def test_what_a_pattern_finds_is_cut() -> None:
    assert values(r"path (?P<path>\S+)", "path " + "x" * 900)["path"] == "x" * 200
    assert values(r"path (?P<path>\S+)", "nothing") == {}


def pack(folder: Path, **changes: object) -> Path:
    rule = {"id": "ray.x", "kind": "cause", "match": ["some text"], "what": "something went wrong", "fix": "mend it", "examples": ["some text"]}  # fmt: skip
    text = yaml.safe_dump({"layer": "Ray", "rules": [{**rule, **changes}]}, sort_keys=False)
    path = folder / "ray.yaml"
    path.write_text("# a comment\n" + text, encoding="utf-8")
    return path


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("changes", "at", "said"),
    [
        ({"kind": "guess"}, "kind:", "cause"),
        ({"match": ["some (text"]}, "- some (text", "no pattern of RE2"),
        ({"match": [r"some (?=text)"]}, "- some (?", "no pattern of RE2"),
        ({"match": ["(a|b)"]}, "- (a|b)", "plain characters"),
        ({"what": "{nothing} went wrong"}, "id:", "no pattern has the group 'nothing'"),
        ({"differ": ["a", "b"]}, "id:", "no pattern has the group a, b"),
        ({"fix": ""}, "id:", "expected one line that says what to do"),
        ({"links": ["http://x"]}, "- http://x", "expected https://"),
        ({"examples": []}, "examples:", "at least 1"),
        ({"colour": "red"}, "colour:", "Extra inputs"),
        ({"priority": 1000}, "priority:", "less than or equal to 99"),
        ({"id": "Ray X"}, "id:", "pattern"),
    ],
)
def test_a_wrong_rule_is_named_with_its_line(
    changes: dict[str, object], at: str, said: str, tmp_path: Path
) -> None:
    path = pack(tmp_path, **changes)
    with pytest.raises(TriageRulesError) as caught:
        load_rules(tmp_path)
    assert said in str(caught.value)
    assert caught.value.where == f"{path}:{line_of(path, at)}"


def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("layer: Ray\nrules: {]}\n", encoding="utf-8")
    with pytest.raises(TriageRulesError, match=r"x\.yaml:2: this file of rules cannot be read"):
        load_rules(tmp_path)


def test_no_pack_and_a_rule_there_twice(tmp_path: Path) -> None:
    with pytest.raises(TriageRulesError, match="no rule pack"):
        load_rules(tmp_path)
    second = pack(tmp_path).read_text()
    (tmp_path / "second.yaml").write_text(second, encoding="utf-8")
    with pytest.raises(TriageRulesError, match=r"ray\.x is there twice"):
        load_rules(tmp_path)
