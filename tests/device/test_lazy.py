from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from verl_musa.device.lazy import _RunAfter, when_imported

_numbers = itertools.count()


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"lazy_example_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_action_runs_after_the_import_and_not_before(module_name: str) -> None:
    seen: list[int] = []
    when_imported(module_name, lambda module: seen.append(module.value))
    assert seen == []
    importlib.import_module(module_name)
    assert seen == [1]


def test_action_runs_at_once_for_an_imported_module(module_name: str) -> None:
    module = importlib.import_module(module_name)
    seen: list[ModuleType] = []
    when_imported(module_name, seen.append)
    assert seen == [module]


def test_actions_run_in_order(module_name: str) -> None:
    seen: list[str] = []
    when_imported(module_name, lambda _: seen.append("first"))
    when_imported(module_name, lambda _: seen.append("second"))
    importlib.import_module(module_name)
    assert seen == ["first", "second"]


def test_a_failing_action_fails_the_import(module_name: str) -> None:
    def fail(module: ModuleType) -> None:
        raise RuntimeError(f"refused {module.__name__}")

    when_imported(module_name, fail)
    with pytest.raises(RuntimeError, match=f"refused {module_name}"):
        importlib.import_module(module_name)


def test_the_module_keeps_its_real_loader(module_name: str) -> None:
    when_imported(module_name, lambda _: None)
    module = importlib.import_module(module_name)
    assert module.__spec__ is not None
    assert not isinstance(module.__spec__.loader, _RunAfter)
    assert not isinstance(module.__loader__, _RunAfter)


def test_a_missing_module_stays_missing() -> None:
    when_imported("lazy_example_that_is_not_there", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lazy_example_that_is_not_there")
