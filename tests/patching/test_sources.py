from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_musa.patching import PatchError, sources
from verl_musa.patching.sources import ArchiveSource, InstalledSource, open_requirement, require_installed

from .conftest import Lab


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as stream:
        for member, text in files.items():
            stream.writestr(member, text)
    return path


def sdist(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as stream:
        for member, text in files.items():
            raw = text.encode()
            entry = tarfile.TarInfo(f"{name}-{version}/{member}")
            entry.size = len(raw)
            stream.addfile(entry, io.BytesIO(raw))
    return path


FILES = {"up/core.py": "X = 1\n", "up/pkg/__init__.py": "Y = 2\n", "tests/up/core.py": "X = 3\n"}


def test_a_wheel(tmp_path: Path) -> None:
    source = ArchiveSource(wheel(tmp_path, "up_stream", "1.2+cpu", FILES))
    assert (source.distribution, source.version) == ("up-stream", "1.2")
    assert source.read("up.core") == ("up_stream-1.2+cpu-py3-none-any.whl!up/core.py", "X = 1\n")
    assert source.read("up.pkg") == ("up_stream-1.2+cpu-py3-none-any.whl!up/pkg/__init__.py", "Y = 2\n")
    assert source.read("core") is None


def test_an_sdist_with_a_source_folder(tmp_path: Path) -> None:
    source = ArchiveSource(
        sdist(tmp_path, "up", "1.2", {f"src/{name}": text for name, text in FILES.items()})
    )
    assert source.read("up.core") == ("up-1.2.tar.gz!up-1.2/src/up/core.py", "X = 1\n")
    assert source.read("up.none") is None


def test_an_installed_distribution(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(lab.site))
    source = InstalledSource("fakeup")
    assert source.version == "1.0"
    assert source.read("fakeup.core") == (
        str(lab.site / "fakeup" / "core.py"),
        "def answer():\n    return 1\n",
    )
    assert source.read("fakeup") == (str(lab.site / "fakeup" / "__init__.py"), "")
    assert source.read("fakeup.none") is None


def test_an_editable_installation(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = tmp_path / "checkout"
    elsewhere.mkdir()
    (lab.site / "fakeup").rename(elsewhere / "fakeup")
    monkeypatch.syspath_prepend(str(lab.site))
    monkeypatch.syspath_prepend(str(elsewhere))
    source = InstalledSource("fakeup")
    assert source.read("fakeup.core") == (
        str(elsewhere / "fakeup" / "core.py"),
        "def answer():\n    return 1\n",
    )
    assert source.read("fakeup") == (str(elsewhere / "fakeup" / "__init__.py"), "")
    assert source.read("fakeup.none") is None
    assert "fakeup" not in sys.modules


@pytest.mark.parametrize("text", ["verl", "verl>=1", "==1", "verl==", "verl==*", "missing.whl", "-e=="])
def test_only_exact_versions(text: str) -> None:
    with pytest.raises(PatchError, match="not an exact version"), open_requirement(text):
        pass


@pytest.mark.parametrize("name", ["up.whl", "up-1.tar.gz"])
def test_damaged_archives(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("no archive")
    with pytest.raises(PatchError, match=r"not a (wheel or sdist|readable archive)"):
        ArchiveSource(tmp_path / name)


def test_the_installed_version_is_not_downloaded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(lab.site))
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: pytest.fail("downloaded"))
    with open_requirement("fakeup==1.0") as source:
        assert isinstance(source, InstalledSource)


class Pip:
    """Stands in for `pip download`: fails `failures` times, then leaves a wheel."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options["timeout"] == sources.DOWNLOAD_LIMIT_S
        self.calls.append(command)
        if len(self.calls) <= self.failures:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: no matching distribution\n")
        wheel(Path(command[command.index("--dest") + 1]), "fakeup", "9.9", {"fakeup/core.py": "X = 9\n"})
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_downloads_prefer_wheels_and_are_removed(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    pip = Pip(failures)
    monkeypatch.setattr(subprocess, "run", pip)
    with open_requirement("fakeup==9.9") as source:
        assert source.read("fakeup.core") == ("fakeup-9.9-py3-none-any.whl!fakeup/core.py", "X = 9\n")
    assert len(pip.calls) == failures + 1
    assert all("--no-deps" in call for call in pip.calls)
    assert ["--no-binary=:all:" in call for call in pip.calls] == [False, False, True][: failures + 1]
    folder = Path(pip.calls[0][pip.calls[0].index("--dest") + 1])
    assert not folder.exists()


def test_a_failed_download_says_what_pip_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Pip(99))
    with pytest.raises(PatchError, match="no matching distribution"), open_requirement("fakeup==9.9"):
        pass


def test_a_download_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: Sequence[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(PatchError, match="did not end"), open_requirement("fakeup==9.9"):
        pass


def test_what_is_not_installed_says_how_to_go_on() -> None:
    with pytest.raises(PatchError, match="--against nowhere-at-all==VERSION"):
        require_installed("nowhere-at-all")
