from __future__ import annotations

import pytest

from verl_musa.lint import Kind, lint, lint_text


def rules(text: str, kind: Kind = Kind.PYTHON) -> list[str]:
    return [finding.rule.id for finding in lint_text(text, "a", kind).findings]


@pytest.mark.parametrize(
    "text",
    [
        "a = '/mnt/x'  # verl-musa: ignore[path.machine] a reason\n",
        "# verl-musa: ignore[path.machine] a reason\na = '/mnt/x'\n",
        "# verl-musa: ignore[path.machine] a reason\n# more words\n\na = '/mnt/x'\n",
        "# verl-musa: ignore[path.machine] a reason\na = f(\n    1,\n    '/mnt/x',\n)\n",
        "a = f('/mnt/x', '10.0.0.1')  #verl-musa:ignore[net.address,path.machine] a reason\n",
    ],
)
def test_covers(text: str) -> None:
    report = lint_text(text, "a.py", Kind.PYTHON)
    assert report.findings == []
    assert {finding.waived for finding in report.waived} == {"a reason"}


def test_covers_a_continued_command() -> None:
    text = "# verl-musa: ignore[path.machine] a reason\npython x \\\n  --a 1 \\\n  --b /mnt/x\n"
    assert rules(text, Kind.SHELL) == []


def test_covers_in_yaml() -> None:
    assert rules("a: /mnt/x  # verl-musa: ignore[path.machine] a reason\n", Kind.YAML) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = '/mnt/x'  # verl-musa: ignore[path.machine]\n", ["path.machine", "waiver.no-reason"]),
        ("a = '/mnt/x'  # verl-musa: ignore[net.address] a reason\n", ["path.machine", "waiver.unused"]),
        (
            "# verl-musa: ignore[path.machine] a reason\nb = 1\na = '/mnt/x'\n",
            ["path.machine", "waiver.unused"],
        ),
        (
            "b = 1  # verl-musa: ignore[path.machine] a reason\na = '/mnt/x'\n",
            ["path.machine", "waiver.unused"],
        ),
        ("a = 1  # verl-musa: ignore[nothing] a reason\n", ["waiver.unknown-rule"]),
        ("a = 1  # verl-musa: ignore\n", ["waiver.unknown-rule", "waiver.no-reason"]),
        ("a = '# verl-musa: ignore[path.machine] in a text'\n", []),
    ],
)
def test_faulty(text: str, expected: list[str]) -> None:
    assert sorted(rules(text)) == sorted(expected)


def test_a_waiver_of_a_rule_that_was_not_asked_for_is_not_unused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file = tmp_path_factory.mktemp("waivers") / "a.py"
    file.write_text("a = '/mnt/x'  # verl-musa: ignore[path.machine] a reason\n", encoding="utf-8")
    assert lint([file], select=["net", "waiver"]).findings == []
    assert lint([file], ignore=["path"]).findings == []
    assert len(lint([file], select=["path"]).waived) == 1
