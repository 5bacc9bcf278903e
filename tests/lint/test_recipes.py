from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from verl_musa.checks import Result, Status
from verl_musa.errors import RecipeError
from verl_musa.lint import lint


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "recipes/tiny"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("name: tiny\n", encoding="utf-8")
    return folder


def result(status: Status, where: str = "") -> Result:
    return Result(check="data.columns", looks_at="x", status=status, evidence="seen", fix="do", where=where)


@pytest.mark.usefixtures("recipe")
def test_results_become_findings_in_the_same_form() -> None:
    seen: list[Path] = []

    def check(folder: Path) -> Sequence[Result]:
        seen.append(folder)
        return [
            result(Status.OK),
            result(Status.FAIL, f"{folder.resolve()}/config.yaml:7"),
            result(Status.WARN, "--set a=b"),
            result(Status.FAIL),
        ]

    report = lint([Path()], recipe_check=check)
    assert seen == [Path("recipes/tiny")]
    assert [(one.where, one.rule.status.value, one.message) for one in report.findings] == [
        ("recipes/tiny/config.yaml:7", "FAIL", "seen"),
        ("recipes/tiny/recipe.yaml", "WARN", "--set a=b: seen"),
        ("recipes/tiny/recipe.yaml", "FAIL", "seen"),
    ]
    assert {one.fix for one in report.findings} == {"do"}


def test_what_could_not_be_looked_at_is_a_note(recipe: Path) -> None:
    report = lint([recipe], recipe_check=lambda _: [result(Status.UNKNOWN)])
    assert report.findings == []
    assert report.notes == [f"{recipe}: data.columns was not looked at: seen"]


@pytest.mark.usefixtures("recipe")
def test_a_recipe_that_cannot_be_read() -> None:
    def check(folder: Path) -> Sequence[Result]:
        raise RecipeError("unknown field", where=f"{folder}/recipe.yaml:1", found="'nam'", expected="'name'")

    (finding,) = lint([Path()], recipe_check=check).findings
    assert finding.where == "recipes/tiny/recipe.yaml:1"
    assert finding.message == "unknown field; 'nam'"
    assert finding.fix == "'name'"


def test_recipes_are_left_out_without_a_check(recipe: Path) -> None:
    assert lint([recipe]).findings == []
