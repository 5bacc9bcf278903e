"""The build: its cache key, its lock, and what it says when it cannot be done. Nothing is compiled here."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch
from torch_musa import _build

GCC = _build.Toolchain(("g++",), "g++ 12.2.0")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two small sources and an empty cache."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "musa_sim.h").write_text("#pragma once\n", encoding="utf-8")
    (folder / "a.cpp").write_text("int a = 1;\n", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_build, "source_dir", lambda: folder)
    monkeypatch.setattr(_build, "find_toolchain", lambda: GCC)
    return folder


def _place(folder: Path) -> Path:
    library = _build.cache_root() / _build.cache_key(folder, GCC) / _build.LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    return library


def test_the_key_follows_sources_torch_compiler_and_flags(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [_build.cache_key(sources, GCC), _build.cache_key(sources, _build.Toolchain(("g++",), "g++ 13"))]
    (sources / "a.cpp").write_text("int a = 2;\n", encoding="utf-8")
    keys.append(_build.cache_key(sources, GCC))
    (sources / "b.cpp").write_text("", encoding="utf-8")
    keys.append(_build.cache_key(sources, GCC))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9.9")
        keys.append(_build.cache_key(sources, GCC))
    monkeypatch.setattr(_build, "FLAGS", ("-O3",))
    keys.append(_build.cache_key(sources, GCC))
    assert len(set(keys)) == len(keys)


def test_a_cached_library_is_used(sources: Path) -> None:
    library = _place(sources)
    assert _build.ensure_built() == library


def test_without_a_compiler_any_build_of_the_same_sources_will_do(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = _place(sources)
    monkeypatch.setattr(_build, "find_toolchain", lambda: None)
    assert _build.ensure_built() == library
    (sources / "a.cpp").write_text("int a = 3;\n", encoding="utf-8")
    with pytest.raises(ImportError, match=r"C\+\+ compiler 'g\+\+' was not found.*apt-get install g\+\+"):
        _build.ensure_built()


def test_missing_python_headers_are_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sources.is_dir()
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    with pytest.raises(ImportError, match=rf"headers are missing: {tmp_path}/Python.h.*python3-dev"):
        _build.ensure_built()


def test_a_compile_error_names_compiler_and_log(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'a.cpp:1: error: broken on purpose' >&2\nexit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    toolchain = _build.Toolchain((str(compiler),), "cxx 1.0")
    monkeypatch.setattr(_build, "find_toolchain", lambda: toolchain)
    with pytest.raises(
        ImportError, match=r"compiler cxx 1\.0, exit 1\): a\.cpp:1: error: broken on purpose"
    ) as caught:
        _build.ensure_built(quiet=True)
    log = _build.cache_root() / f"{_build.cache_key(sources, toolchain)}.log"
    assert str(log) in str(caught.value)
    assert "broken on purpose" in log.read_text(encoding="utf-8")
    assert not list(_build.cache_root().glob(".*.tmp")), "a failed build leaves nothing behind"


def test_a_build_of_another_process_is_waited_for_within_a_bound(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_build, "LOCK_WAIT_S", 0.3)
    root = _build.cache_root()
    root.mkdir(parents=True)
    lock = root / f"{_build.cache_key(sources, GCC)}.lock"
    with lock.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ImportError, match="another process has been building") as caught:
            _build.ensure_built()
    assert str(lock) in str(caught.value)


def test_a_build_writes_a_whole_library_atomically(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "cxx"  # writes the file that follows -o
    compiler.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done\n', encoding="utf-8"
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(_build, "find_toolchain", lambda: _build.Toolchain((str(compiler),), "cxx 1.0"))
    library = _build.ensure_built()
    assert library.read_text(encoding="utf-8") == "made\n"
    assert [path.name for path in library.parent.iterdir()] == [_build.LIBRARY]
    assert "[2/3] a.cpp" in capsys.readouterr().err
    assert sources.is_dir()


def test_a_missing_compiler_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    assert _build.find_toolchain() is None
    monkeypatch.delenv("CXX")
    toolchain = _build.find_toolchain()
    assert (toolchain is None) == (shutil.which("g++") is None)


def test_the_module_prints_the_path_of_the_library() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_musa.build"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(_build.__file__).parents[1])},
    )
    assert Path(done.stdout.strip()).name == _build.LIBRARY
