from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "images" / "common" / "bytecode.sh"


def compiled(folder: Path, processors: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    (folder / "package").mkdir(parents=True)
    for number in range(40):
        shared = "\n".join(f"    alpha_{n} = {{'beta_{n}', 'gamma_{number}'}}" for n in range(number))
        (folder / "package" / f"module_{number}.py").write_text(f"def f():\n{shared}\n    return 1\n")
    (folder / "template.py").write_text("{{ this is no Python }}\n")
    nproc = folder / "bin" / "nproc"
    nproc.parent.mkdir()
    nproc.write_text(f"#!/bin/sh\necho {processors}\n")
    nproc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nproc.parent}:{os.defpath}:/usr/bin")
    done = subprocess.run(
        ["sh", str(SCRIPT), sys.executable, "."],  # noqa: S607  (the sh of any system)
        cwd=folder, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "no Python of this version" in done.stdout, "templates are no fault"
    return {path.name: path.read_bytes() for path in folder.rglob("*.pyc")}


def test_bytecode_does_not_depend_on_the_number_of_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = compiled(tmp_path / "one", 1, monkeypatch)
    assert len(one) == 40
    assert compiled(tmp_path / "three", 3, monkeypatch) == one
    flags = {int.from_bytes(content[4:8], "little") for content in one.values()}
    assert flags == {0b01}, "by hash, never checked: no date in it"
