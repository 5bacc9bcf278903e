from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from verl_musa.image import tree
from verl_musa.image.tree import HashCache, content_hash, differing, list_filesystem, list_folder, list_tar


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    for path, text in {
        "etc/passwd": "root",
        "etc/hostname": "made by the engine",
        "tmp/left": "x",
        "usr/bin/tool": "#!/bin/sh",
        "opt/verl-musa/share/verl-musa/provenance.json": "{}",
        "opt/verl-musa/lib/a.py": "a = 1",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "usr/bin/tool").chmod(0o755)
    (folder / "bin").symlink_to("usr/bin")
    return folder


def whole(root: Path) -> str:
    return content_hash(list_filesystem(root))


def test_dates_and_what_an_engine_or_a_run_writes_do_not_count(root: Path) -> None:
    before = whole(root)
    os.utime(root / "etc/passwd", (1, 1))
    (root / "etc/hostname").write_text("another host")
    (root / "tmp/more").write_text("y")
    (root / "var/log").mkdir(parents=True)
    (root / "var").rmdir() if not any((root / "var").iterdir()) else (root / "var/log/x").write_text("log")
    (root / "opt/verl-musa/share/verl-musa/provenance.json").write_text('{"schema": 1}')
    changed = differing({}, list_filesystem(root))
    assert not {"etc/hostname", "tmp/more", "var/log/x"} & set(changed)
    assert "opt/verl-musa/share/verl-musa/provenance.json" not in changed
    assert whole(root) != before, "the new folder /var counts"


@pytest.mark.parametrize("change", ["content", "mode", "link", "added", "missing"])
def test_every_change_of_an_image_gives_another_hash(root: Path, change: str) -> None:
    before = list_filesystem(root)
    if change == "content":
        (root / "etc/passwd").write_text("toor")
    elif change == "mode":
        (root / "etc/passwd").chmod(0o600)
    elif change == "link":
        (root / "bin").unlink()
        (root / "bin").symlink_to("usr/sbin")
    elif change == "added":
        (root / "etc/new").write_text("")
    else:
        (root / "etc/passwd").unlink()
    after = list_filesystem(root)
    assert content_hash(before) != content_hash(after)
    expected = {"link": "bin", "added": "etc/new"}.get(change, "etc/passwd")
    assert differing(before, after) == [expected]


def test_a_tar_of_a_file_system_lists_like_the_file_system(root: Path) -> None:
    os.link(root / "usr/bin/tool", root / "usr/bin/tool2")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path in sorted(root.iterdir()):
            tar.add(path, arcname=path.name)
    stream.seek(0)
    assert list_tar(stream) == list_filesystem(root)


def test_packages_agree_across_umasks_but_not_about_what_can_be_run(root: Path) -> None:
    before = list_folder(root / "opt")
    (root / "opt/verl-musa/lib/a.py").chmod(0o664)
    assert list_folder(root / "opt") == before
    (root / "opt/verl-musa/lib/a.py").chmod(0o755)
    assert differing(before, list_folder(root / "opt")) == ["verl-musa/lib/a.py"]


def test_a_cached_hash_is_not_used_for_a_file_that_changed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = root / "etc/passwd"
    facts = file.stat()
    cache = HashCache("test")
    first = cache.sha256(file)
    cache.save()
    file.write_text("toor")  # as long as before, and dated back: the change date gives it away
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    again = HashCache("test")
    assert again.sha256(file) != first
    file.chmod(0o600)
    assert HashCache("other").sha256(file) == again.sha256(file)


def test_a_file_that_has_not_changed_is_not_read_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = HashCache("test")
    before = list_folder(root, cache=cache)
    cache.save()

    def read(path: object) -> str:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(tree, "sha256", read)
    assert list_folder(root, cache=HashCache("test")) == before


def test_a_file_is_read_once_for_the_packages_and_the_whole_file_system(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def note(path: object) -> str:
        read.append(str(path))
        return "0"

    monkeypatch.setattr(tree, "sha256", note)
    hashes = HashCache(None)
    list_folder(root, cache=hashes)
    once = len(read)
    list_filesystem(root, hashes)
    assert len(read) == once == len(set(read)) > 0
