from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from verl_musa import extras


@pytest.fixture
def aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with one extra, which holds one distribution."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    info = tmp_path / "aside" / "megatron" / "lonely_dist-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lonely-dist\nVersion: 1.5\n")
    return tmp_path / "aside"


def test_only_folders_that_exist(aside: Path) -> None:
    assert extras.folders(["megatron", "vllm"]) == [aside / "megatron"]
    assert extras.folders() == [aside / "megatron"]
    assert extras.folders([]) == []


def test_an_image_without_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert extras.folders() == []
    assert extras.distribution("pytest").version == pytest.__version__


@pytest.mark.usefixtures("aside")
def test_a_distribution_of_an_extra_is_seen_by_those_that_name_it() -> None:
    assert extras.distribution("lonely-dist").version == "1.5"
    assert extras.distribution("lonely-dist", ["megatron"]).version == "1.5"
    for names in ([], ["vllm"]):
        with pytest.raises(metadata.PackageNotFoundError):
            extras.distribution("lonely-dist", names)
