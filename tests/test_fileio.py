from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from verl_musa.fileio import write_atomic, write_json


def test_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old and longer")
    write_atomic(target, "new")
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_mode_is_set(tmp_path: Path) -> None:
    write_atomic(tmp_path / "launch.sh", b"#!/bin/sh\n", mode=0o755)
    assert os.access(tmp_path / "launch.sh", os.X_OK)


def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def full_disk(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_json_round_trip_keeps_chinese_readable(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"名": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"名": 1}
    assert "名" in (tmp_path / "a.json").read_text()
