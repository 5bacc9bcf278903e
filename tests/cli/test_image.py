from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_musa.cli import main
from verl_musa.image import environment


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small environment, so that nothing of the real one is read."""
    folder = tmp_path / "site-packages"
    (folder / "alpha").mkdir(parents=True)
    (folder / "alpha" / "__init__.py").write_text("a = 1\n")
    info = folder / "alpha-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\n")
    (info / "RECORD").write_text("alpha/__init__.py,,\nalpha-1.0.dist-info/METADATA,,\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "_places", lambda: [("main", folder)])
    return folder


def test_what_was_recorded_is_shown_and_compared(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "record", str(tmp_path / "before")]) == 0
    assert "environment of 1 packages" in capsys.readouterr().out
    assert main(["image", "diff", ".", str(tmp_path / "before")]) == 0
    assert capsys.readouterr().out == "no difference\n"
    (site / "alpha" / "__init__.py").write_text("a = 2\n")
    assert main(["image", "diff", str(tmp_path / "before"), ".", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is False
    assert found["packages"] == ["alpha 1.0: other files under the same version"]
    assert found["files"] == ["main/alpha/__init__.py (changed)"]


def test_this_environment_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "show", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], list(found["packages"])) == ("environment", ["alpha"])
    assert found["series"]["patches"]
    assert main(["image", "show"]) == 0
    assert "alpha" in capsys.readouterr().out


def test_an_environment_has_no_sbom(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "show", "--sbom"]) == 2
    assert "no SBOM" in capsys.readouterr().err


def test_without_an_engine_a_build_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'Cannot connect' >&2\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("VERL_MUSA_DOCKER", str(docker))
    assert main(["image", "build", "sim", "--cache", str(tmp_path / "images")]) == 2
    assert "no Docker Engine answers" in capsys.readouterr().err


def test_the_musa_image_is_not_built_over_an_unknown_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 20.10.24\n")
    docker.chmod(0o755)
    monkeypatch.setenv("VERL_MUSA_DOCKER", str(docker))
    assert main(["image", "build", "musa", "--cache", str(tmp_path / "images")]) == 2
    assert "the base of image musa has no digest" in capsys.readouterr().err


def test_an_unknown_user_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "build", "sim", "--run-as", "nobody-here"]) == 2
    assert "expected:  root or verl" in capsys.readouterr().err


def test_an_unknown_image_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "build", "cuda"]) == 2
    assert "no image 'cuda'" in capsys.readouterr().err


def test_a_run_refuses_a_lock_item_without_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "qwen3-tiny-dense", "--dry-run", "--unlocked", "config"]) == 2
    assert "by name and with a reason" in capsys.readouterr().err
