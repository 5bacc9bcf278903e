from __future__ import annotations

import sys
from pathlib import Path

import pytest

from verl_musa.errors import LintError
from verl_musa.lint import Kind, lint
from verl_musa.lint.files import MAX_BYTES, kind_of, select

FAULT = "A = '/mnt/x'\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str = FAULT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.py", "", Kind.PYTHON),
        ("a.pyi", "", Kind.PYTHON),
        ("a.sh", "", Kind.SHELL),
        ("a.YAML", "", Kind.YAML),
        ("a.yml", "", Kind.YAML),
        ("Dockerfile", "", Kind.DOCKERFILE),
        ("Dockerfile.musa", "", Kind.DOCKERFILE),
        ("gpu.dockerfile", "", Kind.DOCKERFILE),
        ("dockerfile.py", "", Kind.PYTHON),
        ("Dockerfile.md", "", None),
        ("run", "#!/usr/bin/env bash\n", Kind.SHELL),
        ("run", "#!/bin/sh -e\n", Kind.SHELL),
        ("run", "#!/usr/bin/python3\n", Kind.PYTHON),
        ("run", "#!/usr/bin/perl\n", None),
        ("run", "text\n", None),
        ("a.md", FAULT, None),
        ("a.parquet", "", None),
    ],
)
def test_kinds(here: Path, name: str, text: str, kind: Kind | None) -> None:
    assert kind_of(write(here / name, text)) is kind


def test_skipped_folders_and_links(here: Path) -> None:
    write(here / "a.py")
    for folder in (".git", ".nox/x", "__pycache__", "a.egg-info", "sub/node_modules"):
        write(here / folder / "b.py")
    write(here / "venv/lib/c.py")
    write(here / "venv/pyvenv.cfg", "home = x\n")
    (here / "d.py").symlink_to(here / "a.py")
    assert [target.shown for target in select([Path()]).targets] == ["a.py"]


def test_what_is_left_out_is_said(here: Path) -> None:
    write(here / "big.yaml", "a: 1\n" + "#" * MAX_BYTES)
    (here / "binary.py").write_bytes(b"a = 1\0")
    (here / "latin.py").write_bytes(b"a = '\xe9'")
    report = lint([Path(), write(here / "a.md")])
    assert report.files == 0
    assert report.findings == []
    assert sorted(note.partition(":")[0] for note in report.notes) == [
        "a.md",
        "big.yaml",
        "binary.py",
        "latin.py",
    ]
    assert all("left out" in note for note in report.notes)


def test_a_file_that_cannot_be_read_is_a_note(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here / "a.py")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    report = lint([Path()])
    assert report.files == 0
    assert report.notes == ["a.py: left out: Permission denied"]


def test_byte_order_mark_and_dos_lines(here: Path) -> None:
    (here / "a.py").write_bytes(b"\xef\xbb\xbfB = 1\r\nA = '/mnt/x'\r\n")
    (finding,) = lint([Path()]).findings
    assert finding.where == "a.py:2:5"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "甲 = f('中文', '/mnt/x')\n"),
        ("a.sh", "x '中文' '/mnt/x'\n"),
        ("a.yaml", "甲: [中文, /mnt/x]\n"),
        ("b.py", "甲 = '中文', 'hf" + "_q7Zk2Vd9Xw4Tn8Rb3Yc6Lm1Pf5Hs0JgAaE'\n"),
    ],
)
def test_columns_are_characters(here: Path, name: str, text: str) -> None:
    write(here / name, text)
    (finding,) = lint([Path()]).findings
    assert text[finding.column - 1 :].lstrip("'").startswith(("/mnt/x", "hf"))


def test_exclude(here: Path) -> None:
    write(here / "pyproject.toml", '[tool.verl-musa.lint]\nexclude = ["old", "sub/*_gen.py"]\n')
    write(here / "sub/pyproject.toml", "[tool.other]\n")
    for name in ("a.py", "old/b.py", "sub/c_gen.py", "sub/d.py"):
        write(here / name)
    assert [target.shown for target in select([Path()]).targets] == ["a.py", "sub/d.py"]
    assert [target.shown for target in select([Path("sub")]).targets] == ["sub/d.py"]
    assert [target.shown for target in select([Path("old/b.py")]).targets] == ["old/b.py"]


@pytest.mark.parametrize("table", ["exclude = 'x'", "exclude = [1]", "skip = ['x']"])
def test_configuration_with_a_mistake(here: Path, table: str) -> None:
    file = write(here / "pyproject.toml", f"[tool.verl-musa.lint]\n{table}\n")
    with pytest.raises(LintError) as caught:
        lint([here])
    assert caught.value.where == str(file)


def test_configuration_that_is_no_toml(here: Path) -> None:
    write(here / "pyproject.toml", "[")
    with pytest.raises(LintError, match="configuration"):
        lint([here])


def test_no_such_path(here: Path) -> None:
    with pytest.raises(LintError, match="no such file or folder"):
        lint([here / "none"])


def test_no_such_rule(here: Path) -> None:
    with pytest.raises(LintError, match="no rule 'pat'"):
        lint([here], select=["pat"])


def test_site_files_hold_machine_facts(here: Path) -> None:
    text = "shared: /mnt/shared\nhead: 10.0.0.1\nhf_token: " + "hf" + "_q7Zk2Vd9Xw4Tn8Rb3Yc6Lm1Pf5Hs0JgAaE\n"
    for name in ("site.yaml", "site.example.yaml", "other.yaml"):
        write(here / name, text)
    found = [(one.file, one.rule.id) for one in lint([Path()]).findings]
    assert found == [
        ("other.yaml", "path.machine"),
        ("other.yaml", "net.address"),
        ("other.yaml", "secret"),
        ("site.example.yaml", "secret"),
        ("site.yaml", "secret"),
    ]


def distribution(root: Path, files: dict[str, str], **extra: str) -> None:
    info = root / "shipped-1.2.dist-info"
    for name, text in files.items():
        write(root / name, text)
    write(info / "METADATA", "Metadata-Version: 2.1\nName: shipped\nVersion: 1.2\n")
    for name, text in extra.items():
        write(info / name.replace("_json", ".json"), text)


def test_installed_is_read_and_not_imported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "raise SystemExit('imported')\nA = '/home/alice/debug'\n"
    listed = "shipped/__init__.py,,\nshipped/data.bin,,\nshipped/gone.py,,\nshipped/__pycache__/x.py,,\n"
    distribution(here, {"shipped/__init__.py": code, "shipped/__pycache__/x.py": code}, RECORD=listed)
    monkeypatch.syspath_prepend(here)
    report = lint(installed=["shipped"])
    assert [finding.where for finding in report.findings] == ["shipped/__init__.py:2:5"]
    assert report.files == 1
    assert report.notes == [f"shipped 1.2, files under {here}"]
    assert "shipped" not in sys.modules


def test_installed_as_a_link_to_a_checkout(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = '{"url": "file:///checkout", "dir_info": {"editable": true}}'
    distribution(here, {}, RECORD="", direct_url_json=link)
    monkeypatch.syspath_prepend(here)
    with pytest.raises(LintError) as caught:
        lint(installed=["shipped"])
    assert caught.value.fix == "verl-musa lint /checkout"


def test_installed_without_a_list_of_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(here, {})
    monkeypatch.syspath_prepend(here)
    with pytest.raises(LintError, match="lists no files"):
        lint(installed=["shipped"])


def test_not_installed() -> None:
    with pytest.raises(LintError, match="not installed"):
        lint(installed=["no-such-distribution"])
