from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from verl_musa.env import _versions as versions
from verl_musa.env.report import Devices, Fact


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Name -> version of all packages that seem to be installed."""
    packages: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in packages:
            raise PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    return packages


def test_package(installed: dict[str, str]) -> None:
    installed["torch"] = "2.13.0+cpu"
    assert versions.package("torch").value == "2.13.0+cpu"
    missing = versions.package("ray")
    assert (missing.value, missing.state, missing.shown) == (None, "absent", "not installed")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("version.json", '{"driver": {"version": "9.9.9"}, "musa_toolkits": {"version": "4.3.7"}}', "4.3.7"),
        ("version.json", '{"version": "5.2.0"}', "5.2.0"),
        ("version.txt", "MUSA SDK Version 4.3.5\n", "4.3.5"),
        ("musa_version", "rc5.2.0-x\n", "5.2.0-x"),
    ],
)
def test_sdk(name: str, text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    fact = versions.sdk(tmp_path)
    assert (fact.value, fact.source) == (expected, str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("version.json", "{", "no version in version.json"),
        ("version.json", "[]", "no version in version.json"),
        ("version.txt", "unreleased", "no version in version.txt"),
        ("readme", "1.2.3", "no file named *version*"),
    ],
)
def test_sdk_unknown(name: str, text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    fact = versions.sdk(tmp_path)
    assert fact.state == "unknown"
    assert why in fact.why


def test_sdk_absent(tmp_path: Path) -> None:
    fact = versions.sdk(tmp_path / "none")
    assert (fact.state, "MUSA_HOME" in fact.why) == ("unknown", True)


def test_mccl_header_then_library(tmp_path: Path, installed: dict[str, str]) -> None:
    assert installed == {}
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmccl.so.2.11.4").touch()
    (tmp_path / "lib/libmccl.so").symlink_to("libmccl.so.2.11.4")
    assert versions.mccl(tmp_path).value == "2.11.4"
    (tmp_path / "include").mkdir()
    header = tmp_path / "include/mccl.h"
    header.write_text("#define MCCL_MAJOR 2\n#define MCCL_MINOR 12\n#define MCCL_PATCH 1\n", encoding="utf-8")
    assert versions.mccl(tmp_path).value == "2.12.1"


def test_mccl_of_the_simulator_or_unknown(tmp_path: Path, installed: dict[str, str]) -> None:
    assert versions.mccl(tmp_path).state == "unknown"
    installed["musa-sim"] = "0.1.0"
    assert versions.mccl(tmp_path).value == "simulated by musa-sim 0.1.0 (over gloo)"


def test_torch_musa(installed: dict[str, str]) -> None:
    installed["musa-sim"] = "0.1.0"
    assert versions.torch_musa().value == "simulator (musa-sim 0.1.0)"
    installed["torch_musa"] = "2.7.1"
    both = versions.torch_musa()
    assert (both.state, "remove one" in both.why) == ("unknown", True)
    del installed["musa-sim"]
    assert versions.torch_musa().value == "2.7.1"


@pytest.mark.parametrize(
    ("text", "value", "why"),
    [
        ("__simulator__ = True\nraise SystemExit\n", "simulator (no package metadata)", ""),
        ("__simulator__: bool = True\n", "simulator (no package metadata)", ""),
        ("__simulator__ = False\n", None, "importable, but without package metadata"),
        ("x = (\n", None, "importable, but without metadata or source"),
    ],
)
def test_torch_musa_without_metadata_is_read_not_run(
    *,
    text: str,
    value: str | None,
    why: str,
    tmp_path: Path,
    installed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert installed == {}
    (tmp_path / "torch_musa").mkdir()
    (tmp_path / "torch_musa/__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(
        sys.modules, "torch_musa", raising=False
    )  # other tests of this process import the simulator
    fact = versions.torch_musa()
    assert (fact.value, fact.why) == (value, why)


def test_driver_comes_from_the_device_list() -> None:
    def driver(devices: Devices) -> Fact:
        return next(fact for fact in versions.versions(devices) if fact.name == "driver")

    assert driver(Devices(source="mthreads-gmi", devices=(), driver="3.3.5")).value == "3.3.5"
    assert driver(Devices(source="mthreads-gmi", devices=())).why == "mthreads-gmi does not name it"
    assert driver(Devices(source="none", devices=None, notes=("a: b", "c: d"))).why == "a: b; c: d"
