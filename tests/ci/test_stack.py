"""The shared environment's layers: order, stamps, and failures that say what happened."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "stack.py"


@pytest.fixture(scope="module")
def stack() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stack_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_needs_come_first_and_once(stack: ModuleType) -> None:
    assert stack.in_order(["rollout", "test"]) == ["train", "rollout", "test"]


def test_every_requirement_is_pinned_exactly(stack: ModuleType) -> None:
    for layer in stack.LAYERS.values():
        for name in (*layer.requirements, *layer.aside):
            for line in (stack.ROOT / name).read_text().splitlines():
                text = line.split("#")[0].strip()
                assert not text or "==" in text, f"{name}: {line}"


def test_no_package_is_pinned_twice_with_different_versions(stack: ModuleType) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for layer in stack.LAYERS.values():
        for name in (*layer.requirements, *layer.aside):
            for line in (stack.ROOT / name).read_text().splitlines():
                text = line.split("#")[0].split(";")[0].strip()
                if not text:
                    continue
                package, version = text.lower().replace("_", "-").split("==")
                assert seen.setdefault(package, (version, name))[0] == version, (
                    f"{package}: {name}, {seen[package]}"
                )


def test_a_changed_requirement_changes_the_fingerprint(
    stack: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "ROOT", tmp_path)
    layer = stack.Layer("x", requirements=("r.txt",))
    (tmp_path / "r.txt").write_text("a==1\n")
    before = stack.fingerprint(layer)
    (tmp_path / "r.txt").write_text("a==2\n")
    assert stack.fingerprint(layer) != before


def test_a_failed_command_shows_the_end_of_its_log(stack: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such package'); raise SystemExit(3)"]
    with pytest.raises(SystemExit, match="no such package"):
        stack.run_logged(command, tmp_path / "log", "installing")
