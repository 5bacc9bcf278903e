from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.cli import lint as verb
from verl_musa.cli import main

Output = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("VERL_MUSA_SITE", raising=False)
    (tmp_path / "clean.py").write_text("A = 1\n", encoding="utf-8")
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")


def test_clean(folder: Path, capsys: Output) -> None:
    assert main(["lint", str(folder)]) == 0
    assert capsys.readouterr().out == "1 files: nothing found\n"


def test_text(folder: Path, capsys: Output) -> None:
    write(folder, "a.sh", "#!/bin/bash\nexport MODEL=/mnt/models\n")
    write(folder, "b.py", "A = '~/data'\n")
    assert main(["lint", "."]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "a.sh:2:14 path.machine '/mnt/models'",
        "    -> take it from an argument, a variable or ${site.NAME} of site.yaml",
        "b.py:1:5 path.home '~/data'",
        "    -> name a folder that every host sees: an argument, or ${site.NAME} of site.yaml",
        "3 files: 1 FAIL, 1 WARN",
    ]


def test_warnings_alone_pass(folder: Path) -> None:
    write(folder, "b.py", "A = '~/data'\n")
    assert main(["lint"]) == 0


def test_what_cannot_be_parsed_is_unknown(folder: Path, capsys: Output) -> None:
    write(folder, "b.py", "def\n")
    assert main(["lint"]) == 3
    assert "b.py:1 file.syntax python syntax" in capsys.readouterr().out


def test_json(folder: Path, capsys: Output) -> None:
    write(folder, "b.py", "A = '/mnt/x'\nB = '/nfs/x'  # verl-musa: ignore[path.machine] a reason\n")
    assert main(["lint", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert report["exit_code"] == 2
    assert report["counts"] == {"OK": 0, "WARN": 0, "FAIL": 1, "UNKNOWN": 0}
    assert report["files"] == 2
    assert [(one["check"], one["where"]) for one in report["checks"]] == [("path.machine", "b.py:1:5")]
    assert [(one["where"], one["reason"]) for one in report["waived"]] == [("b.py:2:5", "a reason")]


def test_sarif(folder: Path, capsys: Output) -> None:
    write(folder, "b.py", "A = '/mnt/x'\n")
    assert main(["lint", "--sarif", "out.sarif"]) == 2
    log = json.loads((folder / "out.sarif").read_text(encoding="utf-8"))
    assert log["version"] == "2.1.0"
    assert log["runs"][0]["results"][0]["ruleId"] == "path.machine"
    assert "b.py:1:5" in capsys.readouterr().out


def test_select_and_ignore(folder: Path, capsys: Output) -> None:
    write(folder, "b.py", "A = '/mnt/x'\nB = '10.0.0.1'\n")
    assert main(["lint", "--select", "net"]) == 2
    assert "path.machine" not in capsys.readouterr().out
    assert main(["lint", "--ignore", "net.address", "--ignore", "path"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no such file or folder"),
        (["--installed", "no-such-distribution"], "is not installed here"),
        (["--select", "x"], "no rule 'x'"),
        (["--sarif", "none/out.sarif"], "no folder for the SARIF file"),
    ],
)
def test_bad_input(folder: Path, capsys: Output, arguments: list[str], said: str) -> None:
    assert folder.is_dir()
    assert main(["lint", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_recipes_and_their_variants_are_checked(
    make_recipe: Callable[..., Path], folder: Path, capsys: Output
) -> None:
    recipe = make_recipe()
    write(recipe, "config.yaml", "trainer.nope: 1\n")
    assert main(["lint", str(recipe)]) == 2
    out = capsys.readouterr().out
    assert "config.yaml:1" in out
    assert "trainer.nope" in out
    assert main(["lint", "--no-recipes", str(recipe), str(folder / "clean.py")]) == 0


def test_without_verl_recipes_are_left_out_and_said(
    folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "_can_check_recipes", lambda: False)
    assert main(["lint", str(folder)]) == 0
    assert "note: recipes were not checked: veRL is not installed here" in capsys.readouterr().out
