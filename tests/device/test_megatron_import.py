"""torchada before Megatron, with hollow packages of both names."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from verl_musa.device import megatron_import


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a ``megatron`` (a namespace package, as upstream's) that notes whether torchada came first."""
    core = tmp_path / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("import sys\nFIRST = 'torchada' in sys.modules\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    names = ("torchada", "megatron", "megatron.core")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


def _with_torchada(folder: Path, text: str = "") -> None:
    (folder / "torchada.py").write_text(text)
    importlib.invalidate_caches()


def test_torchada_is_imported_right_before_megatron(packages: Path) -> None:
    _with_torchada(packages)
    before = len(sys.meta_path)
    megatron_import.arm()
    megatron_import.arm()
    assert len(sys.meta_path) == before + 1
    assert "torchada" not in sys.modules
    assert importlib.import_module("megatron.core").FIRST is True
    assert len(sys.meta_path) == before


def test_a_megatron_that_does_without_is_imported_with_a_warning(
    packages: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert packages
    megatron_import.arm()
    with caplog.at_level(logging.WARNING, megatron_import.__name__):
        assert importlib.import_module("megatron.core").FIRST is False
    assert "must know MUSA by itself" in caplog.text


def test_a_broken_torchada_stops_the_import(packages: Path) -> None:
    _with_torchada(packages, "raise ImportError('libmusart.so: cannot open')")
    megatron_import.arm()
    with pytest.raises(ImportError, match=r"libmusart\.so"):
        importlib.import_module("megatron.core")
    assert "megatron.core" not in sys.modules


def test_a_megatron_that_came_first_is_refused(packages: Path) -> None:
    _with_torchada(packages)
    importlib.import_module("megatron.core")
    with pytest.raises(RuntimeError, match="megatron was imported before torchada"):
        megatron_import.arm()


def test_a_megatron_that_came_after_torchada_is_fine(packages: Path) -> None:
    _with_torchada(packages)
    importlib.import_module("torchada")
    importlib.import_module("megatron.core")
    before = list(sys.meta_path)
    megatron_import.arm()
    assert sys.meta_path == before
