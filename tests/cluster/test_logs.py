from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from verl_musa.cluster import logs


def test_tail_gives_the_last_lines_without_colours(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\n\n\x1b[31mtwo\x1b[0m\n" + b"x" * 900 + b"\xff\n")
    assert logs.tail(file, 2, longest=5) == "two\nxxxxx"
    assert logs.tail(tmp_path / "none", 2) == ""


def test_logs_are_kept_without_sockets_links_and_excess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kept = tmp_path / "s", tmp_path / "kept"
    (source / "sub").mkdir(parents=True)
    (source / "a.out").write_text("0123456789")
    (source / "empty").write_text("")
    (source / "sub" / "b.err").write_text("abc")
    (source / "z.out").write_text("never fits")
    (source / "link").symlink_to(source / "a.out")
    monkeypatch.setattr(logs, "LARGEST_FILE", 4)
    monkeypatch.setattr(logs, "LARGEST_FOLDER", 6)
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(source)
        server.bind("sock")
        cut = logs.keep_logs(source, kept)
    assert (kept / "a.out").read_text() == "6789"
    assert (kept / "sub" / "b.err").read_text() == "bc"
    assert sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()) == [
        "a.out",
        "sub/b.err",
    ]
    assert cut == ["a.out", "sub/b.err", "z.out"]
    assert logs.keep_logs(tmp_path / "none", kept) == []


def test_kept_logs_keep_the_time_of_their_last_line(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    log = tmp_path / "s" / "worker.err"
    log.write_text("x")
    os.utime(log, (1_800_000_000, 1_800_000_001))
    logs.keep_logs(tmp_path / "s", tmp_path / "kept")
    assert (tmp_path / "kept" / "worker.err").stat().st_mtime == 1_800_000_001
