from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from verl_musa.errors import ImageError
from verl_musa.image.base import BaseImages, check_base, prepare_base
from verl_musa.image.engine import Engine
from verl_musa.image.pins import load_pins

ROOT = Path(__file__).resolve().parents[2] / "images"

# The double of mmdebstrap: what it was asked for becomes the tar; the packages are the argument after the first.
DOUBLE = """#!/bin/sh
echo run >> {runs}
case "$*" in *{broken}*) echo no such package >&2; exit 25;; esac
for target; do case "$target" in *.tar) echo "$2 $SOURCE_DATE_EPOCH" > "$target";; esac; done
"""


@dataclass(frozen=True)
class Imports(Engine):
    """Keeps the names of what was imported."""

    names: list[str] = field(default_factory=list)

    def has(self, reference: str) -> bool:
        return reference in self.names

    def import_tar(self, tar: Path, tag: str, log: Path) -> None:
        assert tar.is_file()
        assert log.parent.is_dir()
        self.names.append(tag)


def make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, broken: str = "nothing"
) -> BaseImages:
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir(exist_ok=True)
    program.write_text(DOUBLE.format(runs=tmp_path / "runs", broken=broken))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    pins = load_pins("sim", ROOT)
    return prepare_base(
        pins, engine, given=None, registry=None, cache=tmp_path / "bases", log=tmp_path / "build.log", progress=lambda _: None
    )  # fmt: skip


def test_both_bases_are_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Imports("docker", "0", "legacy")
    first = make(tmp_path, monkeypatch, engine)
    assert make(tmp_path, monkeypatch, engine) == first
    assert (tmp_path / "runs").read_text() == "run\nrun\n"
    assert sorted(engine.names) == sorted([first.runtime, first.build])
    kept = sorted(path.read_text() for path in (tmp_path / "bases").glob("*.tar"))
    assert [("g++" in text, text.split()[-1]) for text in kept] == [
        (False, "1735689600"),
        (True, "1735689600"),
    ]


def test_a_base_that_cannot_be_made_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ImageError, match="step 'base' failed") as caught:
        make(tmp_path, monkeypatch, Imports("docker", "0", "legacy"), broken="g++")
    assert "no such package" in str(caught.value)
    assert len(list((tmp_path / "bases").glob("*.tar"))) == 1, "the one that could be made"


def test_what_puts_a_base_together_is_asked_for_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    make(made, monkeypatch, Imports("docker", "0", "legacy"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    pins = load_pins("sim", ROOT)
    check_base(pins, None, made / "bases")
    check_base(pins, "given:1", tmp_path / "bases")
    with pytest.raises(ImageError, match="cannot be made here") as caught:
        check_base(pins, None, tmp_path / "bases")
    assert "apt-get install mmdebstrap" in (caught.value.fix or "")
