"""The shared environment's layers: order, stamps, and failures that say what happened."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
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


def pins(stack: ModuleType, name: str) -> list[tuple[str, str, str]]:
    """(package, version, comment) of each line of a requirements file."""
    found = []
    for line in (stack.ROOT / name).read_text().splitlines():
        text, _, comment = line.partition("#")
        if text.strip():
            package, version = text.split(";")[0].strip().lower().replace("_", "-").split("==")
            found.append((package, version, comment))
    return found


def test_no_package_is_pinned_twice_with_different_versions(stack: ModuleType) -> None:
    shared: dict[str, tuple[str, str]] = {}
    for layer in stack.LAYERS.values():
        for name in layer.requirements:
            for package, version, _ in pins(stack, name):
                assert shared.setdefault(package, (version, name))[0] == version, (
                    f"{package}: {name}, {shared[package]}"
                )
    for layer in stack.LAYERS.values():
        for name in layer.aside:
            for package, version, comment in pins(stack, name):
                other = shared.get(package, (version, name))[0]
                # What lies aside hides the shared one from the jobs that see it: only where the file says so.
                assert version == other or f"instead of {other}" in comment, f"{package}: {name}, {other}"


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


LISTED = """\
:env:.find-links='/wheels'
global.cert='/ca.crt'
global.extra-index-url='https://one.invalid/simple https://two.invalid/simple'
global.find-links='/other'
user.index-url='https://mirror.invalid/simple'
"""


def test_pips_own_index_settings_are_handed_to_uv(stack: ModuleType) -> None:
    settings = stack.pip_settings(LISTED)
    assert settings["find-links"] == ["/wheels"]
    command = stack.uv_command(Path("bin/python"), settings)
    pairs = list(itertools.pairwise(command))
    assert ("--default-index", "https://mirror.invalid/simple") in pairs
    assert ("--find-links", "/wheels") in pairs
    assert "--no-deps" in command


def test_without_settings_uv_gets_none(stack: ModuleType) -> None:
    assert stack.uv_command(Path("bin/python"), stack.pip_settings(""))[-1] == "--no-deps"


@pytest.mark.parametrize(
    ("listed", "uv_works", "tools"),
    [
        ("", True, ["uv"]),
        ("", False, ["uv", "pip"]),
        ("global.extra-index-url='https://x.invalid'", True, ["pip"]),
    ],
)
def test_pip_takes_over_where_uv_fails_or_indexes_must_be_merged(
    stack: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    listed: str,
    uv_works: bool,
    tools: list[str],
) -> None:
    used: list[str] = []
    asked = subprocess.CompletedProcess([], 0, stdout=listed)
    monkeypatch.setattr(stack.subprocess, "run", lambda *_arguments, **_options: asked)

    def run(command: list[str], _log: Path, what: str, _env: object = None) -> None:
        if what == "installing uv":
            return
        used.append("uv" if Path(command[0]).name == "uv" else "pip")
        if used[-1] == "uv" and not uv_works:
            raise SystemExit("no answer")

    monkeypatch.setattr(stack, "run_logged", run)
    stack.Installer(Path(sys.executable), tmp_path / "log").install(["-r", "x"], "installing")
    assert used == tools


def test_another_python_is_refused_with_the_way_out(stack: ModuleType) -> None:
    stack.check_python((3, 11, 9))
    with pytest.raises(SystemExit, match=r"found Python 3\.12; expected 3\.11(.|\n)*python3\.11 -m nox"):
        stack.check_python((3, 12, 1))
